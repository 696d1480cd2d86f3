"""The features: the parts of scheduling beyond planning and binding one gang, each a subclass of `Feature`.

For instance `backfill` keeps nodes for the head of the queue, `preemption` evicts pods for gangs, and `repair` replaces
members of running gangs. The core calls features only by their base class (`extender.core.feature.Feature`), and
imports none of these modules.
"""
