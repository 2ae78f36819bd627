package etcdconf

import (
	"bytes"
	"cmp"
	_ "embed" // for singleMember
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/internal/disk"
)

// singleMember is the configuration of a cluster of one member, without data-dir.
//
//go:embed single-member.yaml
var singleMember []byte

// A Source locates etcd's configuration when no sidecar serves it.
type Source struct {
	File      string // YAML; "" means the configuration of a single member on loopback
	DataDir   string // absolute path of etcd's data directory, unless File contains one
	PodName   string // selects the member if File describes several; "" if unknown
	Namespace string // namespace of the pod; "" if unknown
}

// Document is a configuration with its data directory, which a validation needs.
type Document struct {
	YAML    []byte
	DataDir string
}

// ErrUnusable means that a configuration file was read but is not a valid configuration.
var ErrUnusable = errors.New("cannot use etcd configuration")

// Load reads the configuration file and returns it with its data directory. It appends the source's data-dir to a
// file that has none; otherwise it returns the file unchanged, unless the file is for several members. The error is
// ErrUnusable if the file was read but is not valid.
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

// expandVariables replaces $(POD_NAME) and $(POD_NAMESPACE), like Kubernetes in a pod's arguments. A variable without
// a value remains as it is.
func expandVariables(raw []byte, pod, namespace string) []byte {
	for variable, value := range map[string]string{"$(POD_NAME)": pod, "$(POD_NAMESPACE)": namespace} {
		if value != "" {
			raw = bytes.ReplaceAll(raw, []byte(variable), []byte(value))
		}
	}
	return raw
}

// dataDirIn returns the data directory of a configuration, or "". It rejects wal-dir, because a validation looks
// for the log in the data directory.
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
// integers into floats. Some documents cannot be extended that way, so the result is parsed again.
func appendDataDir(raw []byte, dataDir string) ([]byte, error) {
	if dataDir == "" {
		return nil, errors.New("it has no data-dir and none was given")
	}
	extended := bytes.Clone(raw)
	if len(extended) > 0 && !bytes.HasSuffix(extended, []byte("\n")) {
		extended = append(extended, '\n')
	}
	quoted, _ := json.Marshal(dataDir) // a string always marshals, and its JSON is valid YAML
	extended = fmt.Appendf(extended, "data-dir: %s\n", quoted)
	if found, err := dataDirIn(extended); err != nil || found != dataDir {
		return nil, errors.New("it has no data-dir and none can be appended: write it in, or write the document as lines of YAML, not in braces")
	}
	return extended, nil
}

// perMemberKeys are the keys that have URLs by member in a configuration for all members. For etcd their values are
// strings.
var perMemberKeys = []string{"initial-advertise-peer-urls", "advertise-client-urls"}

// ForMember returns the configuration of one member, given one for all members as etcd-druid writes it; the sidecar
// does the same for its pods. pod is the name of the member's pod. If neither of the two keys has URLs by member, the
// document is already that of one member and is returned unchanged. Every error is a *KeyError. Call it before Parse
// for a configuration that no sidecar has processed.
func ForMember(document []byte, pod string) ([]byte, error) {
	mapping, warnings, err := decode(document)
	if err != nil || !slices.ContainsFunc(perMemberKeys, func(key string) bool { return isMapping(mapping[key]) }) {
		return document, nil //nolint:nilerr // Parse says what is wrong
	}
	if len(warnings) > 0 { // the new document would not show what caused a warning
		return nil, keyErrorf("", "%s; take one out, because a file for several members must not be ambiguous", warnings[0])
	}
	name, err := memberName(mapping, pod)
	if err != nil {
		return nil, err
	}
	if err := completeCluster(mapping); err != nil {
		return nil, err
	}
	mapping["name"] = name
	for _, key := range perMemberKeys {
		if mapping[key], err = urlsOf(name, key, mapping[key]); err != nil {
			return nil, err
		}
	}
	return encode(mapping, fmt.Sprintf("for %s from a configuration for all members", name))
}

func isMapping(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}

// memberName returns the pod's name, preceded by the prefix if the file has one.
func memberName(mapping map[string]any, pod string) (string, error) {
	const key = "member-name-prefix"
	prefix, isText := mapping[key].(string)
	switch {
	case pod == "":
		return "", keyErrorf(perMemberKeys[0], "has URLs by member, but POD_NAME is not set, so this member is unknown; set it from metadata.name")
	case mapping[key] != nil && !isText:
		return "", keyErrorf(key, "must be text")
	case prefix != "":
		return prefix + "-" + pod, nil
	}
	return pod, nil
}

// urlsOf returns the URLs of one member in etcd's format.
func urlsOf(name, key string, value any) (string, error) {
	members, ok := value.(map[string]any)
	if !ok {
		return "", keyErrorf(key, "%s must both have URLs by member", strings.Join(perMemberKeys, " and "))
	}
	if members[name] == nil {
		return "", keyErrorf(key, "has no URLs for this member, %s, as POD_NAME or the host name has it", quote(name))
	}
	urls, err := urlList(name, key, members[name])
	return strings.Join(urls, ","), err
}

// urlList returns a value, a list of strings or one string, as a list.
func urlList(name, key string, value any) (urls []string, _ error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, element := range list {
		url, ok := element.(string)
		if !ok || url == "" {
			return nil, keyErrorf(key, "must have a list of URLs for %s", quote(name))
		}
		urls = append(urls, url)
	}
	if len(urls) == 0 {
		return nil, keyErrorf(key, "must have a list of URLs for %s, not an empty one", quote(name))
	}
	return urls, nil
}

// completeCluster adds missing members to initial-cluster.
func completeCluster(mapping map[string]any) error {
	const key = "initial-cluster"
	given, ok := mapping[key].(string)
	if !ok && mapping[key] != nil {
		return keyErrorf(key, "must be text")
	}
	var pairs []string
	named := map[string]bool{}
	for pair := range strings.SplitSeq(given, ",") {
		if name, _, found := strings.Cut(pair, "="); pair != "" {
			pairs, named[name] = append(pairs, pair), found
		}
	}
	members, _ := mapping[perMemberKeys[0]].(map[string]any) // urlsOf reports values of other types
	for _, name := range slices.SortedFunc(maps.Keys(members), compareNames) {
		if named[name] {
			continue
		}
		urls, err := urlList(name, perMemberKeys[0], members[name])
		if err != nil {
			return err
		}
		for _, url := range urls {
			pairs = append(pairs, name+"="+url)
		}
	}
	mapping[key] = strings.Join(pairs, ",")
	return nil
}

// compareNames sorts etcd-main-10 after etcd-main-9.
func compareNames(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// encode returns a document as YAML. The first line is a comment that gives its purpose.
func encode(mapping map[string]any, made string) ([]byte, error) {
	document, err := yaml.Marshal(mapping)
	if err != nil {
		return nil, keyErrorf("", "cannot be written again")
	}
	return append(fmt.Appendf(nil, "# made %s\n", made), document...), nil
}

// ForNewMember returns a member's configuration, changed to join an existing cluster. initialCluster lists the
// cluster's members in the format of initial-cluster. The error is a *KeyError.
func ForNewMember(document []byte, initialCluster string) ([]byte, error) {
	mapping, _, err := decode(document)
	if err != nil {
		return nil, err
	}
	mapping["initial-cluster"] = initialCluster
	mapping["initial-cluster-state"] = embed.ClusterStateFlagExisting
	return encode(mapping, "for a member that joins a cluster")
}
