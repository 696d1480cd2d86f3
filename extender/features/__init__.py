"""The features: scheduling beyond the plan of one gang. The core knows only their base (`extender.core.feature`)."""
