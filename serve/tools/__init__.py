"""The work behind the commands of `specgate` that inspect, measure or test."""
