"""Reads a file of OpenMetrics text with the parser of the Prometheus project and prints it as JSON: samples by `name{label=value}` without the
label `store`, types by family, the stores.

Fails where a family's samples are not of the family, or a histogram does not add up.
"""
import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

samples, types, stores = {}, {}, set()
for family in text_string_to_metric_families(open(sys.argv[1], encoding="utf-8").read()):
    assert family.type != "unknown" and family.name not in types and family.samples and family.documentation, family
    types[family.name] = family.type
    counts = {}
    for sample in family.samples:
        stores.add(sample.labels["store"])
        labels = {key: value for key, value in sample.labels.items() if key != "store"}
        if sample.name.endswith("_bucket"):
            rest = tuple((key, value) for key, value in sorted(labels.items()) if key != "le")
            counts.setdefault(rest, []).append((float(labels["le"]), sample.value))
        name = sample.name + "{" + ",".join(f"{key}={value}" for key, value in sorted(labels.items())) + "}"
        assert name not in samples, name
        samples[name] = sample.value
    for rest, buckets in counts.items():
        assert buckets == sorted(buckets) and [count for _, count in buckets] == sorted(count for _, count in buckets), buckets
        assert buckets[-1] == (float("inf"), samples[f"{family.name}_count{{{','.join(f'{key}={value}' for key, value in rest)}}}"]), buckets
print(json.dumps({"samples": samples, "types": types, "stores": sorted(stores)}))
