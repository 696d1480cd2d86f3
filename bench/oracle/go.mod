// Go wants this file to know where the module begins. What is built has the versions of the control plane: build
// passes -modfile with the go.mod of bench/cluster/modules.
module serried/controlplane

go 1.26.0
