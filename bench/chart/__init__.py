"""Generates the Helm chart, `manifests/helm/serried`, from the kustomizations."""
