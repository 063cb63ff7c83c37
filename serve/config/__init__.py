"""The gateway's configuration: models, pools, guard, quarantine, limits and the layers it is merged from."""
