"""The rules about other pods: kube-scheduler's InterPodAffinity and PodTopologySpread.

Enter by `cluster.MatchingPods` (in the Store) and `plan.InterPodPlanRule` (in a plan).
"""
