// Package etcdconf turns etcd's YAML configuration into a checked configuration of the embedded etcd.
//
// For every malformed value it returns one sentence that names the key. etcd's own reader exits the process for some
// of them, panics for others, and reports some only when the server is already starting. Keys that etcd does not know
// are dropped and reported. The command calls Parse when the lifecycle has fetched a configuration; the embedded etcd
// and the readiness server use the result.
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

// Checked is a configuration that etcd accepts, without the keys that were dropped from it.
type Checked struct {
	// Etcd has neither a logger nor a ZapLoggerBuilder: the caller that starts etcd sets one.
	Etcd *embed.Config
	// Sidecars lists the keys that are meant for the sidecar, sorted: etcd-druid always sends them.
	Sidecars []string
	// Warnings has a sentence for each key without effect, because etcd does not know it or the wrapper overrides it,
	// and for each value that etcd may interpret in an unexpected way.
	Warnings []string
}

// ServerCertificate returns the paths of the certificate and key that etcd presents to clients. ok is false if no
// client listener uses TLS, or if etcd generates its own certificate (auto-tls).
func (c *Checked) ServerCertificate() (certFile, keyFile string, ok bool) {
	info := c.Etcd.ClientTLSInfo
	if info.CertFile == "" || !slices.ContainsFunc(c.Etcd.ListenClientUrls, UsesTLS) {
		return "", "", false
	}
	return info.CertFile, info.KeyFile, true
}

// UsesTLS reports whether a listener at the URL uses TLS.
func UsesTLS(u url.URL) bool { return u.Scheme == "https" || u.Scheme == "unixs" }

// Parse checks yaml and returns etcd's configuration. It reads the certificate and key files that the configuration
// names, checks whether a log exists where etcd will look for one, and opens no other file. Every error is a
// *KeyError, unless the process has run out of file descriptors. The error also matches bootstrap.ErrCertificates if
// only the certificate files are unusable now, because they are being replaced or their mount hangs; then the caller
// should retry.
func Parse(yaml []byte) (checked *Checked, err error) {
	// A panic in etcd or in the YAML reader must not end the process, because that would look like a crash of etcd.
	defer func() {
		if cause := recover(); cause != nil {
			checked, err = nil, keyErrorf("", "cannot be read, the reader panicked with %s", quote(fmt.Sprint(cause)))
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
	s, err := view(document)
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := renameExperimental(document); err != nil {
		return nil, err
	}
	cfg, err := handOver(document, s)
	if err != nil {
		return nil, err
	}
	return &Checked{Etcd: cfg, Sidecars: found.sidecars, Warnings: slices.Concat(warnings, found.warnings, s.warnings)}, nil
}

var errEmpty = keyErrorf("", "is empty")

// maxBytes is the maximum size of a configuration. Real ones have two or three KiB.
const maxBytes = 1 << 20

// decode returns the first YAML mapping in document, like etcd. Numbers stay json.Number, because a float64 cannot
// hold every int64. The warnings list what etcd silently ignores.
func decode(document []byte) (mapping map[string]any, warnings []string, err error) {
	if len(document) > maxBytes {
		return nil, nil, keyErrorf("", "has %d bytes, more than the %d that are allowed", len(document), maxBytes)
	}
	warnings, err = checkSyntax(document)
	if err != nil {
		return nil, nil, err
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil { // the cause would contain the value
		return nil, nil, keyErrorf("", "has a key or a value that cannot be expressed in JSON, such as .nan or a null key")
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&mapping); err != nil {
		return nil, nil, keyErrorf("", "is not a mapping of keys to values")
	}
	return mapping, warnings, nil
}

// checkSyntax returns an error for invalid YAML, and warnings of duplicate keys and of documents after the first.
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
		return nil, keyErrorf("", "not valid YAML (%s)", shorten(err.Error()))
	case first == nil:
		return nil, errEmpty
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		warnings = append(warnings, "only the first YAML document counts")
	}
	return warnings, nil
}

func duplicateKey(text string) string {
	var line int
	var key string
	if _, err := fmt.Sscanf(text, "line %d: key %q already set in map", &line, &key); err != nil {
		return "a key is given twice: the last one counts"
	}
	return fmt.Sprintf("%s is given twice, again on line %d: the last one counts", shorten(key), line)
}

// maxQuoted is the maximum number of characters of a value, or of another program's message, in an error.
const maxQuoted = 80

// A KeyError reports which key of the configuration cannot be used, and why.
type KeyError struct {
	// Key is the key as written in the YAML, "section.key" inside a section, or "" if the problem is not about a
	// single key.
	Key string
	// Problem continues a sentence that starts with the key. It never contains a credential.
	Problem string
	// Cause is the error that caused the problem, or nil.
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

// keyErrorf returns a KeyError with a formatted problem; the format may wrap a cause with %w.
func keyErrorf(key, format string, operands ...any) error {
	err := fmt.Errorf(format, operands...)
	return &KeyError{Key: key, Problem: err.Error(), Cause: errors.Unwrap(err)}
}

// quote makes a value safe to show: the part before an @ may contain a password.
func quote(value string) string {
	if at := strings.LastIndex(value, "@"); at >= 0 {
		scheme, _, _ := strings.Cut(value[:at], "://")
		if len(scheme) == at {
			scheme = "" // without a scheme, the whole text may be the password
		}
		value = scheme + "://redacted" + value[at:]
	}
	return strconv.Quote(shorten(value))
}

// shorten cuts text to maxQuoted characters.
func shorten(text string) string {
	if runes := []rune(text); len(runes) > maxQuoted {
		return string(runes[:maxQuoted]) + "…"
	}
	return text
}

// handOver makes etcd read the document, and completes the configuration like etcd's own command (etcdmain).
func handOver(document map[string]any, s *settings) (*embed.Config, error) {
	cfg, err := readConfig(document)
	if err != nil {
		return nil, err
	}
	_, _ = cfg.UpdateDefaultClusterFromName(defaultCluster) // the same as in view
	cfg.LogLevel = s.LogLevel
	cfg.ZapLoggerBuilder = nil // set by etcd's validation; while it is set, etcd keeps its quiet logger
	if s.ExperimentalPeerSkipClientSanVerification {
		cfg.PeerTLSInfo.SkipClientSANVerify = true
	}
	if cfg.WarningUnaryRequestDuration == 0 { // otherwise etcd would warn about every request
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	if cfg.V2Deprecation != config.V2Depr1WriteOnlySkipCheck {
		cfg.V2Deprecation = config.V2DeprDefault
	}
	return cfg, nil
}

// readConfig makes etcd read and validate the document. The validation logs to stderr in etcd's format, but nothing
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

// withPipe passes content to read as a path. It needs no writable directory, which the pod may lack.
func withPipe(content []byte, read func(path string) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot hand the configuration to etcd: %w", err)
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	defer out.Close() // runs before the wait and unblocks a write without a reader
	writer.Go(func() {
		defer in.Close()
		_, _ = in.Write(content) // fails only if read stopped early; read then returns the error
	})
	return read(filepath.Join(descriptors(), strconv.Itoa(int(out.Fd()))))
}

// descriptors returns the directory that lists the process's open files by number.
func descriptors() string {
	if _, err := os.Stat("/dev/fd"); err != nil {
		return "/proc/self/fd" // exists on Linux wherever /proc is mounted
	}
	return "/dev/fd"
}

var flagName = regexp.MustCompile(`--([a-z0-9-]+)`)

// keyOf maps parts of etcd's messages that name no flag to the key that they refer to.
var keyOf = map[string]string{
	"clusterState": "initial-cluster-state", "auto-compaction-mode": "auto-compaction-mode", "min version": "tls-max-version",
	"cipher suite": "cipher-suites", "distributed tracing": "distributed-tracing-sampling-rate", "feature gate": "feature-gates",
	"missing bool value": "feature-gates", "invalid value of": "feature-gates",
}

// keyIn returns the key that a message of etcd refers to by its command line flag, or "" if there is none.
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

// KeyOfFlag returns the key, "section.key" inside a section, for a flag of etcd's command; "" if the file has none.
func KeyOfFlag(flag string) string {
	known, secured := keysOf(reflect.TypeFor[settings]()), keysOf(reflect.TypeFor[security]())
	current, isOld := strings.CutPrefix(flag, "experimental-")
	option, isSocket := strings.CutPrefix(flag, "socket-")
	secure, section := flag, clientSection
	if peer, is := strings.CutPrefix(flag, "peer-"); is {
		secure, section = peer, peerSection
	}
	if _, allowed, is := strings.Cut(secure, "cert-allowed-"); is {
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

// replacement returns the key that replaces one that etcd 3.6 reads but no longer uses, or "". Remove it with etcd
// 3.7.
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

// renameExperimental moves values from old keys to their replacements, so that they take effect. etcd's own command
// copies the values after reading the file (etcdmain); its embed package leaves that to the caller.
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
