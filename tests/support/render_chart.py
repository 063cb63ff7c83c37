"""Prints what Helm makes of a chart, for a Python that has Helm's library: `render_chart.py CHART VALUES RELEASE`."""

import json
import sys

from helm_python import Chart

with Chart.load(sys.argv[1]) as chart:
    rendered = chart.render(json.loads(sys.argv[2]), name=sys.argv[3], namespace="default")
print("\n---\n".join(text for name, text in rendered.items() if not name.endswith("NOTES.txt")))
