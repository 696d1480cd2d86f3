"""The Helm chart, `manifests/helm/serried`, made from the kustomization."""
