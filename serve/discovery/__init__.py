"""Discovery: what engines that others run tell of themselves, and how sure that is."""
