package etcdconf

import (
	"maps"
	"slices"
)

// renamed maps the keys that etcd 3.6 reads but no longer uses to those it does use. etcd's own command copies the values
// over after reading the file (etcdmain); its embed package leaves that to the caller. Drop this with etcd 3.7.
var renamed = map[string]string{
	"experimental-bootstrap-defrag-threshold-megabytes": "bootstrap-defrag-threshold-megabytes",
	"experimental-compact-hash-check-time":              "compact-hash-check-time",
	"experimental-compaction-batch-limit":               "compaction-batch-limit",
	"experimental-compaction-sleep-interval":            "compaction-sleep-interval",
	"experimental-corrupt-check-time":                   "corrupt-check-time",
	"experimental-distributed-tracing-address":          "distributed-tracing-address",
	"experimental-distributed-tracing-instance-id":      "distributed-tracing-instance-id",
	"experimental-distributed-tracing-sampling-rate":    "distributed-tracing-sampling-rate",
	"experimental-distributed-tracing-service-name":     "distributed-tracing-service-name",
	"experimental-downgrade-check-time":                 "downgrade-check-time",
	"experimental-enable-distributed-tracing":           "enable-distributed-tracing",
	"experimental-memory-mlock":                         "memory-mlock",
	"experimental-snapshot-catch-up-entries":            "snapshot-catchup-entries",
	"experimental-warning-apply-duration":               "warning-apply-duration",
	"experimental-warning-unary-request-duration":       "warning-unary-request-duration",
	"experimental-watch-progress-notify-interval":       "watch-progress-notify-interval",
}

// renameExperimental gives values under old keys their effect back.
func renameExperimental(document map[string]any) error {
	for _, old := range slices.Sorted(maps.Keys(renamed)) {
		value, present := document[old]
		if !present {
			continue
		}
		current := renamed[old]
		if _, both := document[current]; both {
			return problem(old, "cannot be set together with %s, which replaces it", current)
		}
		document[current] = value
		delete(document, old)
	}
	return nil
}
