package etcdconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
)

// handOver lets etcd read the document, and completes the configuration as etcd's own command does (etcdmain).
func handOver(document map[string]any, s *settings) (*embed.Config, error) {
	cfg, err := readQuietly(document)
	if err != nil {
		return nil, err
	}
	_, _ = cfg.UpdateDefaultClusterFromName(defaultCluster) // as in view
	cfg.LogLevel = s.LogLevel
	cfg.ZapLoggerBuilder = nil // etcd's validation has set it; while it is set, etcd keeps the quiet logger
	if s.ExperimentalPeerSkipClientSanVerification {
		cfg.PeerTLSInfo.SkipClientSANVerify = true
	}
	if cfg.WarningUnaryRequestDuration == 0 { // otherwise etcd warns of every request
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	if cfg.V2Deprecation != config.V2Depr1WriteOnlySkipCheck {
		cfg.V2Deprecation = config.V2DeprDefault
	}
	return cfg, nil
}

// readQuietly lets etcd read and validate the document. The validation logs to stderr in etcd's format, but nothing
// at level fatal. A file such as /dev/null as the output would never be closed.
func readQuietly(document map[string]any) (cfg *embed.Config, err error) {
	document = maps.Clone(document)
	document["log-level"] = "fatal"
	asJSON, err := json.Marshal(document) // JSON is YAML
	if err != nil {
		return nil, problem("", "cannot be encoded: %w", err)
	}
	err = throughPipe(asJSON, func(path string) (readErr error) {
		if cfg, readErr = embed.ConfigFromFile(path); readErr != nil {
			return problem(keyIn(readErr), "etcd refuses it: %w", readErr)
		}
		return nil
	})
	return cfg, err
}

// throughPipe passes content to read by a path, without a writable directory, which the pod may lack.
func throughPipe(content []byte, read func(path string) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot hand the configuration to etcd: %w", err)
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	defer out.Close() // before the wait: unblocks a write that nobody reads
	writer.Go(func() {
		defer in.Close()
		_, _ = in.Write(content) // fails only if read stopped early, and then read returns the error
	})
	return read(filepath.Join(descriptors(), strconv.Itoa(int(out.Fd()))))
}

// descriptors returns the directory that has the process's open files by number.
func descriptors() string {
	if _, err := os.Stat("/dev/fd"); err != nil {
		return "/proc/self/fd" // Linux has it wherever /proc is mounted
	}
	return "/dev/fd"
}

var flagName = regexp.MustCompile(`--([a-z0-9-]+)`)

// keyIn returns the key in a message of etcd's, which names command line flags, or "" if there is none.
func keyIn(err error) string {
	keys := keysOf(reflect.TypeFor[settings]())
	for _, match := range flagName.FindAllStringSubmatch(err.Error(), -1) {
		if _, known := keys[match[1]]; known {
			return match[1]
		}
		if strings.HasPrefix(match[1], "discovery-") {
			return "discovery-config"
		}
	}
	if strings.Contains(err.Error(), "feature gate") {
		return "feature-gates"
	}
	return ""
}

// renamed maps keys that etcd 3.6 reads but no longer uses to their replacements. etcd's own command copies the
// values after reading the file (etcdmain); its embed package leaves that to the caller. Remove this with etcd 3.7.
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

// renameExperimental moves values from old keys to their replacements, so that they take effect.
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
