"""Discovery: what engines that others run report of themselves, and how sure that is."""
