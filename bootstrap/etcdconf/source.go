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

// singleMember is the configuration of a single-member cluster, without data-dir.
//
//go:embed single-member.yaml
var singleMember []byte

// A Source locates the etcd configuration if there is no sidecar.
type Source struct {
	File      string // path of a YAML file; "" means a single member on loopback
	DataDir   string // absolute path, used if File has no data-dir
	PodName   string // name of the pod, which selects the member if File describes more than one; "" if unknown
	Namespace string // namespace of the pod; "" if unknown
}

// Document is a configuration together with its data directory.
type Document struct {
	YAML    []byte
	DataDir string
}

// ErrUnusable means that the configuration file was read but is invalid.
var ErrUnusable = errors.New("invalid etcd configuration")

// Load reads the configuration file and returns it with its data directory. If the file has no data-dir, Load adds
// one with the value of DataDir. If the file describes multiple members, Load returns the configuration of this
// member. The error is ErrUnusable if the file was read but is invalid.
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

// expandVariables replaces $(POD_NAME) and $(POD_NAMESPACE), like Kubernetes does in the arguments of a container.
// Variables without a value are left unchanged.
func expandVariables(raw []byte, pod, namespace string) []byte {
	for variable, value := range map[string]string{"$(POD_NAME)": pod, "$(POD_NAMESPACE)": namespace} {
		if value != "" {
			raw = bytes.ReplaceAll(raw, []byte(variable), []byte(value))
		}
	}
	return raw
}

// dataDirIn returns the data directory in a configuration, or "". Configurations with wal-dir are rejected, because
// validation expects the log in the data directory.
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
		return "", errors.New("wal-dir is not supported without a sidecar; remove the key to keep the log in the data directory, or run with a sidecar")
	}
	dataDir, _ := mapping["data-dir"].(string)
	return dataDir, nil
}

// appendDataDir appends a line with data-dir to the document. Re-encoding the document would drop comments and turn
// large integers into floats. appendDataDir parses the result and returns an error if the document cannot be extended
// by appending a line, for example if it is in braces.
func appendDataDir(raw []byte, dataDir string) ([]byte, error) {
	if dataDir == "" {
		return nil, errors.New("data-dir is not set")
	}
	extended := bytes.Clone(raw)
	if len(extended) > 0 && !bytes.HasSuffix(extended, []byte("\n")) {
		extended = append(extended, '\n')
	}
	quoted, _ := json.Marshal(dataDir) // encoding a string never fails, and JSON is valid YAML
	extended = fmt.Appendf(extended, "data-dir: %s\n", quoted)
	if found, err := dataDirIn(extended); err != nil || found != dataDir {
		return nil, errors.New("cannot append data-dir: set it in the file, or use block-style YAML instead of braces")
	}
	return extended, nil
}

// perMemberKeys lists the keys that map members to URLs in a configuration for all members. In a regular etcd
// configuration, the values of these keys are strings.
var perMemberKeys = []string{"initial-advertise-peer-urls", "advertise-client-urls"}

// ForMember extracts the configuration of one member from an etcd-druid configuration for all members, like the
// sidecar does. pod is the name of the member's pod. If neither of the two keys has URLs per member, ForMember
// returns the document unchanged. All errors are of type *KeyError. Call ForMember before Parse if the configuration
// does not come from the sidecar.
func ForMember(document []byte, pod string) ([]byte, error) {
	mapping, warnings, err := decode(document)
	if err != nil || !slices.ContainsFunc(perMemberKeys, func(key string) bool { return isMapping(mapping[key]) }) {
		return document, nil //nolint:nilerr // Parse reports the error
	}
	if len(warnings) > 0 { // Parse could not repeat the warnings, because the new document omits what caused them
		return nil, keyErrorf("", "%s; a configuration for multiple members must be unambiguous", warnings[0])
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
	return encode(mapping, fmt.Sprintf("configuration of %s, derived from the configuration of all members", name))
}

func isMapping(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}

// memberName returns the name of the member: the pod name, preceded by member-name-prefix if the file has that key.
func memberName(mapping map[string]any, pod string) (string, error) {
	const key = "member-name-prefix"
	prefix, isText := mapping[key].(string)
	switch {
	case pod == "":
		return "", keyErrorf(perMemberKeys[0], "maps member names to URLs, but POD_NAME is not set; set it from metadata.name in the pod spec")
	case mapping[key] != nil && !isText:
		return "", keyErrorf(key, "must be text")
	case prefix != "":
		return prefix + "-" + pod, nil
	}
	return pod, nil
}

// urlsOf returns the URLs of a member, separated by commas as in etcd's configuration.
func urlsOf(name, key string, value any) (string, error) {
	members, ok := value.(map[string]any)
	if !ok {
		return "", keyErrorf(key, "must map member names to URLs, like %s", perMemberKeys[1-slices.Index(perMemberKeys, key)])
	}
	if members[name] == nil {
		return "", keyErrorf(key, "has no URLs for this member (%s, from POD_NAME or the host name)", quote(name))
	}
	urls, err := urlList(name, key, members[name])
	return strings.Join(urls, ","), err
}

// urlList returns a string or a list of strings as a list.
func urlList(name, key string, value any) (urls []string, _ error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, element := range list {
		url, ok := element.(string)
		if !ok || url == "" {
			return nil, keyErrorf(key, "must map %s to a URL or a list of URLs", quote(name))
		}
		urls = append(urls, url)
	}
	if len(urls) == 0 {
		return nil, keyErrorf(key, "must map %s to at least one URL", quote(name))
	}
	return urls, nil
}

// completeCluster adds the members that have peer URLs but are missing from initial-cluster.
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
	members, _ := mapping[perMemberKeys[0]].(map[string]any) // urlsOf reports other types
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

// compareNames orders etcd-main-10 after etcd-main-9.
func compareNames(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// encode returns a document as YAML. The first line is a comment that describes the document.
func encode(mapping map[string]any, made string) ([]byte, error) {
	document, err := yaml.Marshal(mapping)
	if err != nil {
		return nil, keyErrorf("", "cannot encode the document")
	}
	return append(fmt.Appendf(nil, "# %s\n", made), document...), nil
}

// ForNewMember changes the configuration of a member so that it joins an existing cluster. initialCluster lists the
// current members in the format of initial-cluster. All errors are of type *KeyError.
func ForNewMember(document []byte, initialCluster string) ([]byte, error) {
	mapping, _, err := decode(document)
	if err != nil {
		return nil, err
	}
	mapping["initial-cluster"] = initialCluster
	mapping["initial-cluster-state"] = embed.ClusterStateFlagExisting
	return encode(mapping, "configuration of a member that joins an existing cluster")
}
