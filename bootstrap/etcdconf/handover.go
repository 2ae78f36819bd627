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
	cfg, err := readConfig(document)
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

// readConfig lets etcd read and validate the document. The validation logs to stderr in etcd's format, but nothing
// at level fatal. A file such as /dev/null as the output would never be closed.
func readConfig(document map[string]any) (cfg *embed.Config, err error) {
	document = maps.Clone(document)
	document["log-level"] = "fatal"
	asJSON, err := json.Marshal(document) // JSON is YAML
	if err != nil {
		return nil, keyErrorf("", "cannot be encoded: %w", err)
	}
	err = withPipe(asJSON, func(path string) (readErr error) {
		if cfg, readErr = embed.ConfigFromFile(path); readErr != nil {
			return keyErrorf(keyIn(readErr), "etcd refuses it: %w", readErr)
		}
		return nil
	})
	return cfg, err
}

// withPipe passes content to read by a path, without a writable directory, which the pod may lack.
func withPipe(content []byte, read func(path string) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot hand the configuration to etcd: %w", err)
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	defer out.Close() // before the wait: unblocks a write without a reader
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

// keyOf maps parts of etcd's messages that name no flag to the key that they are about.
var keyOf = map[string]string{
	"clusterState": "initial-cluster-state", "auto-compaction-mode": "auto-compaction-mode", "min version": "tls-max-version",
	"cipher suite": "cipher-suites", "distributed tracing": "distributed-tracing-sampling-rate", "feature gate": "feature-gates",
	"missing bool value": "feature-gates", "invalid value of": "feature-gates",
}

// keyIn returns the key in a message of etcd's, which names command line flags, or "" if there is none.
func keyIn(err error) string {
	known := keysOf(reflect.TypeFor[settings]())
	for _, match := range flagName.FindAllStringSubmatch(err.Error(), -1) {
		if _, ok := known[match[1]]; ok {
			return match[1]
		}
		if strings.HasPrefix(match[1], "discovery-") {
			return "discovery-config"
		}
	}
	for part, key := range keyOf {
		if strings.Contains(err.Error(), part) {
			return key
		}
	}
	return ""
}

// replacement returns the key that replaces one which etcd 3.6 reads but no longer uses, or "". Remove it with etcd 3.7.
func replacement(key string, known map[string]reflect.Type) string {
	current, old := strings.CutPrefix(key, "experimental-")
	if current == "snapshot-catch-up-entries" {
		current = "snapshot-catchup-entries"
	}
	if !old || known[current] == nil {
		return ""
	}
	return current
}

// renameExperimental moves values from old keys to their replacements, so that they take effect. etcd's own command copies
// the values after reading the file (etcdmain); its embed package leaves that to the caller.
func renameExperimental(document map[string]any) error {
	known := keysOf(reflect.TypeFor[settings]())
	for _, old := range slices.Sorted(maps.Keys(document)) {
		current := replacement(old, known)
		if current == "" {
			continue
		}
		if document[current] != nil {
			return keyErrorf(old, "cannot be set together with %s, which replaces it", current)
		}
		document[current] = document[old]
		delete(document, old)
	}
	return nil
}
