package etcdconf

import (
	"bytes"
	_ "embed" // for singleMember
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"etcd-wrapper/internal/disk"
)

// singleMember is the configuration of a cluster of one member, without data-dir.
//
//go:embed single-member.yaml
var singleMember []byte

// A Source locates etcd's configuration where no sidecar serves one.
type Source struct {
	File      string // YAML; "" makes that of a single member on loopback
	DataDir   string // absolute path of etcd's data directory, unless File names another
	PodName   string // which member this is, where File is for several; "" if unknown
	Namespace string // of the pod; "" if unknown
}

// Document is a configuration with its data directory, which a validation needs.
type Document struct {
	YAML    []byte
	DataDir string
}

// ErrUnusable means that a configuration file was read but is not a valid configuration.
var ErrUnusable = errors.New("cannot use etcd configuration")

// Load reads the configuration file and returns it with its data directory. A file without data-dir gets that of the
// source appended. A file with one is returned as it is, unless it is for several members. The error is ErrUnusable
// if the file was read but is not valid.
func (s Source) Load() (Document, error) {
	if s.File == "" {
		yaml, err := appendDataDir(singleMember, s.DataDir)
		return Document{YAML: yaml, DataDir: s.DataDir}, err
	}
	raw, err := disk.Read(s.File, maxBytes)
	if err != nil {
		return Document{}, fmt.Errorf("cannot read etcd configuration %s: %w", s.File, err)
	}
	raw, err = ForMember(expandVariables(raw, s.PodName, s.Namespace), s.PodName)
	if err != nil {
		return Document{}, fmt.Errorf("%w %s: %w", ErrUnusable, s.File, err)
	}
	dataDir, err := dataDirIn(raw)
	if err == nil && dataDir == "" {
		raw, err = appendDataDir(raw, s.DataDir)
		dataDir = s.DataDir
	}
	if err != nil {
		return Document{}, fmt.Errorf("%w %s: %w", ErrUnusable, s.File, err)
	}
	return Document{YAML: raw, DataDir: dataDir}, nil
}

// expanded replaces $(POD_NAME) and $(POD_NAMESPACE), as Kubernetes does in a pod's arguments. Where a value is
// unknown, the text stays.
func expandVariables(raw []byte, pod, namespace string) []byte {
	for variable, value := range map[string]string{"$(POD_NAME)": pod, "$(POD_NAMESPACE)": namespace} {
		if value != "" {
			raw = bytes.ReplaceAll(raw, []byte(variable), []byte(value))
		}
	}
	return raw
}

// dataDirIn returns the data directory of a configuration, or "". It rejects wal-dir, because a validation looks for the log
// in the data directory.
func dataDirIn(raw []byte) (string, error) {
	mapping, _, err := decode(raw)
	if err != nil && !errors.Is(err, errEmpty) {
		return "", err
	}
	for _, key := range []string{"data-dir", "wal-dir"} {
		if _, ok := mapping[key].(string); !ok && mapping[key] != nil {
			return "", typeError(key, mapping[key], reflect.TypeFor[string]())
		}
	}
	if walDir, _ := mapping["wal-dir"].(string); walDir != "" {
		return "", errors.New("wal-dir is not supported without a sidecar: leave the log in the data directory, or run with a sidecar")
	}
	dataDir, _ := mapping["data-dir"].(string)
	return dataDir, nil
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
	if found, err := dataDirIn(extended); err != nil || found != dataDir {
		return nil, errors.New("it has no data-dir and none can be appended: write it in, or write the document as lines of YAML, not in braces")
	}
	return extended, nil
}

// quoted encodes a string as JSON, which is valid YAML for any string.
func quoted(s string) string {
	text, _ := json.Marshal(s) // a string always marshals
	return string(text)
}
