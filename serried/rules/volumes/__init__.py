"""Which nodes the volumes of a pod leave it: VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits."""
