package etcdconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
)

// maxConfigBytes is the maximum size of a configuration file. Real ones have one or two KiB.
const maxConfigBytes = 1 << 20

// singleMember is the configuration of a cluster of one member that only this machine can reach. Its sizes and
// intervals are those that etcd-druid uses. The verb takes the quoted data directory.
const singleMember = `name: etcd-0
data-dir: %s
listen-client-urls: http://127.0.0.1:2379
advertise-client-urls: http://127.0.0.1:2379
listen-peer-urls: http://127.0.0.1:2380
initial-advertise-peer-urls: http://127.0.0.1:2380
initial-cluster: etcd-0=http://127.0.0.1:2380
initial-cluster-state: new
initial-cluster-token: etcd-cluster
auto-compaction-mode: periodic
auto-compaction-retention: 30m
quota-backend-bytes: 8589934592
snapshot-count: 10000
metrics: basic
`

// A Source locates etcd's configuration where no sidecar serves one.
type Source struct {
	File      string // YAML; "" makes that of a single member on loopback
	DataDir   string // absolute path of etcd's data directory, unless File names another
	PodName   string // which member this is, where File is for several; "" if nobody knows
	Namespace string // of the pod; "" if nobody knows
}

// Document is a configuration with its data directory, which a validation needs.
type Document struct {
	YAML    []byte
	DataDir string
}

// directories has the values of etcd's configuration that locate its data.
type directories struct{ DataDir, WALDir string }

// ErrUnusable means that a configuration file was read but is not a valid configuration.
var ErrUnusable = errors.New("cannot use etcd configuration")

// Load reads the configuration file and returns it with its data directory. A file without data-dir gets that of the
// source appended. A file with one is returned as it is, unless it is for several members. The error is ErrUnusable
// if the file was read but is not valid.
func (s Source) Load() (Document, error) {
	if s.File == "" {
		return Document{YAML: fmt.Appendf(nil, singleMember, quoted(s.DataDir)), DataDir: s.DataDir}, nil
	}
	raw, err := readBounded(s.File, maxConfigBytes)
	if err != nil {
		return Document{}, fmt.Errorf("cannot read etcd configuration: %w", err)
	}
	raw, err = ForMember(expanded(raw, s.PodName, s.Namespace), s.PodName)
	if err != nil {
		return Document{}, fmt.Errorf("%w %s: %w", ErrUnusable, s.File, err)
	}
	found, err := parseDirectories(raw)
	if err == nil && found.DataDir == "" {
		raw, err = appendDataDir(raw, s.DataDir)
		found.DataDir = s.DataDir
	}
	if err != nil {
		return Document{}, fmt.Errorf("%w %s: %w", ErrUnusable, s.File, err)
	}
	return Document{YAML: raw, DataDir: found.DataDir}, nil
}

// expanded replaces $(POD_NAME) and $(POD_NAMESPACE), as Kubernetes does in a pod's arguments. Where a value is
// unknown, the text stays.
func expanded(raw []byte, pod, namespace string) []byte {
	for variable, value := range map[string]string{"$(POD_NAME)": pod, "$(POD_NAMESPACE)": namespace} {
		if value != "" {
			raw = bytes.ReplaceAll(raw, []byte(variable), []byte(value))
		}
	}
	return raw
}

// parseDirectories returns the directories of a configuration. It rejects wal-dir, because a validation looks for the
// log in the data directory.
func parseDirectories(raw []byte) (directories, error) {
	var found directories
	mapping, _, err := decode(raw)
	if err != nil && !errors.Is(err, errEmpty) {
		return directories{}, err
	}
	for key, into := range map[string]*string{"data-dir": &found.DataDir, "wal-dir": &found.WALDir} {
		text, ok := mapping[key].(string)
		if !ok && mapping[key] != nil {
			return directories{}, mistyped(key, mapping[key], reflect.TypeFor[string]())
		}
		*into = text
	}
	if found.WALDir != "" {
		return directories{}, errors.New("wal-dir is not supported without a sidecar: leave the log in the data directory, or run with a sidecar")
	}
	return found, nil
}

// appendDataDir appends a line instead of encoding the document again, which would lose comments and turn large
// integers into floats. Not every document can be continued that way, so the result is parsed again.
func appendDataDir(raw []byte, dataDir string) ([]byte, error) {
	if dataDir == "" {
		return nil, errors.New("it has no data-dir and none was given")
	}
	extended := bytes.Clone(raw)
	if len(extended) > 0 && !bytes.HasSuffix(extended, []byte("\n")) {
		extended = append(extended, '\n')
	}
	extended = fmt.Appendf(extended, "data-dir: %s\n", quoted(dataDir))
	if found, err := parseDirectories(extended); err != nil || found.DataDir != dataDir {
		return nil, errors.New("it has no data-dir and none can be appended: write it in, or write the document as lines of YAML, not in braces")
	}
	return extended, nil
}

// quoted encodes a string as JSON, which is valid YAML whatever the string contains.
func quoted(s string) string {
	text, _ := json.Marshal(s) // a string always marshals
	return string(text)
}

// readBounded reads a regular file, or one that a symbolic link points to: mounted ConfigMaps are such links. Opening
// anything else, such as a pipe, might block forever.
func readBounded(path string, limit int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return content, err
}
