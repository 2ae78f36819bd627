// Package etcdconf turns etcd's YAML configuration into a validated configuration for the embedded etcd.
//
// The package checks all values before it calls etcd's own parser, which exits the process for some invalid values,
// panics for others, and does not reject some until the server is starting. Every error names the key. Unknown keys
// are dropped with a warning. The command calls Parse after the lifecycle has fetched a configuration, and passes the
// result to the embedded etcd and to the readiness server.
package etcdconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
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
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// Checked is a valid configuration, and describes the keys that were dropped.
type Checked struct {
	// Etcd has no logger and no ZapLoggerBuilder. The caller that starts etcd must set a logger.
	Etcd *embed.Config
	// Sidecars lists the keys for the sidecar, which etcd-druid always sets, in sorted order.
	Sidecars []string
	// Warnings describes keys that have no effect (unknown or overridden by the wrapper) and values that etcd may
	// interpret in an unexpected way.
	Warnings []string
}

// ServerCertificate returns the paths of the certificate and key that etcd presents to clients. If no client listener
// uses TLS or etcd generates its own certificate (auto-tls), ok is false.
func (c *Checked) ServerCertificate() (certFile, keyFile string, ok bool) {
	info := c.Etcd.ClientTLSInfo
	if info.CertFile == "" || !slices.ContainsFunc(c.Etcd.ListenClientUrls, UsesTLS) {
		return "", "", false
	}
	return info.CertFile, info.KeyFile, true
}

// UsesTLS reports whether a listener at the URL uses TLS.
func UsesTLS(u url.URL) bool { return u.Scheme == "https" || u.Scheme == "unixs" }

// Parse validates YAML and returns the etcd configuration. Parse reads the configured certificate and key files and
// checks whether there is a log, but does not open any other files. All errors are of type *KeyError, except if the
// process has run out of file descriptors. An error that also matches bootstrap.ErrCertificates means that only the
// certificate files are unusable, for example during a rotation or on a hanging mount. Callers should retry after
// such an error.
func Parse(yaml []byte) (checked *Checked, err error) {
	// A panic in etcd or in the YAML parser must not end the process, because that would look like an etcd crash.
	defer func() {
		if cause := recover(); cause != nil {
			checked, err = nil, keyErrorf("", "the parser panicked: %s", quote(fmt.Sprint(cause)))
		}
	}()

	raw, warnings, err := decode(yaml)
	if err != nil {
		return nil, err
	}
	var found filter
	document, err := found.section(nil, raw, reflect.TypeFor[settings]())
	if err != nil {
		return nil, err
	}
	s, err := decodeSettings(document)
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := renameExperimental(document); err != nil {
		return nil, err
	}
	cfg, err := etcdConfig(document, s)
	if err != nil {
		return nil, err
	}
	return &Checked{Etcd: cfg, Sidecars: found.sidecars, Warnings: slices.Concat(warnings, found.warnings, s.warnings)}, nil
}

var errEmpty = keyErrorf("", "is empty")

// maxBytes is the maximum size of a configuration in bytes. A typical configuration is two or three KiB in size.
const maxBytes = 1 << 20

// decode returns the first YAML mapping in a document, like etcd. Numbers are decoded as json.Number because a
// float64 cannot represent every int64. The warnings describe anything that etcd ignores silently.
func decode(document []byte) (mapping map[string]any, warnings []string, err error) {
	if len(document) > maxBytes {
		return nil, nil, keyErrorf("", "size of %d bytes exceeds the limit of %d", len(document), maxBytes)
	}
	warnings, err = checkSyntax(document)
	if err != nil {
		return nil, nil, err
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil { // err is not returned, because it would expose the value
		return nil, nil, keyErrorf("", "contains a key or value that JSON cannot represent, such as .nan or a null key")
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&mapping); err != nil {
		return nil, nil, keyErrorf("", "must be a mapping of keys to values")
	}
	return mapping, warnings, nil
}

// checkSyntax returns an error for invalid YAML, and warnings for duplicate keys and additional documents.
func checkSyntax(document []byte) (warnings []string, err error) {
	decoder := goyaml.NewDecoder(bytes.NewReader(document))
	decoder.SetStrict(true)
	var first, second any
	err = decoder.Decode(&first)
	var duplicates *goyaml.TypeError
	switch {
	case errors.As(err, &duplicates):
		for _, text := range duplicates.Errors {
			warnings = append(warnings, duplicateKey(text))
		}
	case err != nil && !errors.Is(err, io.EOF):
		return nil, keyErrorf("", "invalid YAML: %s", shorten(err.Error()))
	case first == nil:
		return nil, errEmpty
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		warnings = append(warnings, "only the first YAML document is used")
	}
	return warnings, nil
}

func duplicateKey(text string) string {
	var line int
	var key string
	if _, err := fmt.Sscanf(text, "line %d: key %q already set in map", &line, &key); err != nil {
		return "a key is set more than once; the last value is used"
	}
	return fmt.Sprintf("%s is set again on line %d; the last value is used", shorten(key), line)
}

// maxQuoted is the maximum number of characters that an error quotes from a value or an external message.
const maxQuoted = 80

// A KeyError describes a problem with a key of the configuration.
type KeyError struct {
	// Key is the key in the YAML ("section.key" inside a section), or "" if the problem does not concern a single
	// key.
	Key string
	// Problem describes the problem without naming the key. It never contains credentials.
	Problem string
	// Cause is the underlying error, or nil.
	Cause error
}

// Error implements error.
func (e *KeyError) Error() string {
	if e.Key == "" {
		return "etcd configuration: " + e.Problem
	}
	return fmt.Sprintf("etcd configuration: %s: %s", e.Key, e.Problem)
}

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Cause }

// keyErrorf returns a KeyError with a formatted problem. The format may wrap a cause with %w.
func keyErrorf(key, format string, operands ...any) error {
	err := fmt.Errorf(format, operands...)
	return &KeyError{Key: key, Problem: err.Error(), Cause: errors.Unwrap(err)}
}

// quote makes a value safe to display. The part before an @ may contain a password.
func quote(value string) string {
	if at := strings.LastIndex(value, "@"); at >= 0 {
		scheme, _, _ := strings.Cut(value[:at], "://")
		if len(scheme) == at {
			scheme = "" // if there is no scheme, the whole value may be a password
		}
		value = scheme + "://redacted" + value[at:]
	}
	return strconv.Quote(shorten(value))
}

// shorten truncates text to maxQuoted characters.
func shorten(text string) string {
	if runes := []rune(text); len(runes) > maxQuoted {
		return string(runes[:maxQuoted]) + "…"
	}
	return text
}

// etcdConfig makes etcd parse the document and sets the values that etcd's own command (etcdmain) would set
// afterwards.
func etcdConfig(document map[string]any, s *settings) (*embed.Config, error) {
	cfg, err := readConfig(document)
	if err != nil {
		return nil, err
	}
	// If initial-cluster is not set, build it; see checkMembership.
	_, _ = cfg.UpdateDefaultClusterFromName(defaultCluster)
	cfg.LogLevel = s.LogLevel
	cfg.ZapLoggerBuilder = nil // the validation sets a quiet logger, which etcd would keep
	if s.ExperimentalPeerSkipClientSanVerification {
		cfg.PeerTLSInfo.SkipClientSANVerify = true
	}
	if cfg.WarningUnaryRequestDuration == 0 { // if not set, etcd warns about every request
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	if cfg.V2Deprecation != config.V2Depr1WriteOnlySkipCheck {
		cfg.V2Deprecation = config.V2DeprDefault
	}
	return cfg, nil
}

// readConfig makes etcd parse and validate the document. The log level is fatal because the validation would log to
// stderr in etcd's format. Logging to a file such as /dev/null would leave that file open.
func readConfig(document map[string]any) (cfg *embed.Config, err error) {
	document = maps.Clone(document)
	document["log-level"] = "fatal"
	asJSON, err := json.Marshal(document) // JSON is YAML
	if err != nil {
		return nil, keyErrorf("", "cannot encode the document: %w", err)
	}
	err = withPipe(asJSON, func(path string) (readErr error) {
		if cfg, readErr = embed.ConfigFromFile(path); readErr != nil {
			return keyErrorf(keyIn(readErr), "rejected by etcd: %w", readErr)
		}
		return nil
	})
	return cfg, err
}

// withPipe calls read with the path of a pipe that contains the content. A temporary file is not an option, because a
// pod may not have a writable directory.
func withPipe(content []byte, read func(path string) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot pass the configuration to etcd: %w", err)
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	defer out.Close() // runs before writer.Wait and unblocks any pending write
	writer.Go(func() {
		defer in.Close()
		_, _ = in.Write(content) // fails only if read stops early, in which case it returns an error
	})
	return read(filepath.Join(descriptors(), strconv.Itoa(int(out.Fd()))))
}

// descriptors returns the directory that lists the process's open file descriptors.
func descriptors() string {
	if _, err := os.Stat("/dev/fd"); err != nil {
		return "/proc/self/fd" // exists on Linux if /proc is mounted
	}
	return "/dev/fd"
}

var flagName = regexp.MustCompile(`--([a-z0-9-]+)`)

// keyOf maps fragments of etcd messages that do not name a flag to the affected key.
var keyOf = map[string]string{
	"clusterState": "initial-cluster-state", "auto-compaction-mode": "auto-compaction-mode", "min version": "tls-max-version",
	"cipher suite": "cipher-suites", "distributed tracing": "distributed-tracing-sampling-rate", "feature gate": "feature-gates",
	"missing bool value": "feature-gates", "invalid value of": "feature-gates",
}

// keyIn returns the key for the flag named in an etcd message, or "" if there is none.
func keyIn(err error) string {
	for _, match := range flagName.FindAllStringSubmatch(err.Error(), -1) {
		if key := KeyOfFlag(match[1]); key != "" {
			return key
		}
	}
	for part, key := range keyOf {
		if strings.Contains(err.Error(), part) {
			return key
		}
	}
	return ""
}

// KeyOfFlag returns the key ("section.key" inside a section) that corresponds to an etcd flag, or "" if there is
// none.
func KeyOfFlag(flag string) string {
	known, secured := keysOf(reflect.TypeFor[settings]()), keysOf(reflect.TypeFor[security]())
	current, isOld := strings.CutPrefix(flag, "experimental-")
	option, isSocket := strings.CutPrefix(flag, "socket-")
	secure, section := flag, clientSection
	if peer, ok := strings.CutPrefix(flag, "peer-"); ok {
		secure, section = peer, peerSection
	}
	if _, allowed, ok := strings.Cut(secure, "cert-allowed-"); ok {
		secure = "allowed-" + allowed
	}
	switch {
	case known[flag] != nil:
		return flag
	case secured[secure] != nil:
		return section + "." + secure
	case isOld && known[current] != nil:
		return current
	case isSocket && keysOf(known["socket-options"])[option] != nil:
		return "socket-options." + option
	case strings.HasPrefix(flag, "discovery-"):
		return "discovery-config"
	default:
		return ""
	}
}

// replacement returns the key that replaces a deprecated key of etcd 3.6, or "". Remove replacement when upgrading to
// etcd 3.7.
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

// renameExperimental moves values from deprecated keys to their replacements so that they take effect. etcdmain
// copies these values after it reads the file, but the embed package leaves that to the caller.
func renameExperimental(document map[string]any) error {
	known := keysOf(reflect.TypeFor[settings]())
	for _, old := range slices.Sorted(maps.Keys(document)) {
		current := replacement(old, known)
		if current == "" {
			continue
		}
		if document[current] != nil {
			return keyErrorf(old, "cannot be combined with %s, which replaces it", current)
		}
		document[current] = document[old]
		delete(document, old)
	}
	return nil
}
