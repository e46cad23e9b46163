"""Reads a file of Prometheus text with the project's own parser and prints it as JSON: samples by `name{label=value}`, types by family.

Fails where a family's samples are not of the family, or a histogram does not add up.
"""
import json
import sys

from prometheus_client.parser import text_string_to_metric_families

samples, types = {}, {}
for family in text_string_to_metric_families(open(sys.argv[1], encoding="utf-8").read()):
    assert family.type != "unknown" and family.name not in types and family.samples, family
    types[family.name] = family.type
    counts = {}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            counts.setdefault(sample.labels["operation"], []).append((float(sample.labels["le"]), sample.value))
        name = sample.name + "{" + ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())) + "}"
        assert name not in samples, name
        samples[name] = sample.value
    for operation, buckets in counts.items():
        assert buckets == sorted(buckets) and [count for _, count in buckets] == sorted(count for _, count in buckets), buckets
        assert buckets[-1] == (float("inf"), samples[f"{family.name}_count{{operation={operation}}}"]), buckets
print(json.dumps({"samples": samples, "types": types}))
