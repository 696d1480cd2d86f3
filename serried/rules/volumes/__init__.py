"""The rules about volumes: kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits.

Enter by `cluster.Volumes` (in the Store) and `plan.VolumeChoices` (in a plan).
"""
