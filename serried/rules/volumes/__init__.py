"""Rules about volumes: kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits."""
