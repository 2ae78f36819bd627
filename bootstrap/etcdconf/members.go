package etcdconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"sigs.k8s.io/yaml"
)

// perMemberKeys are the keys under which a configuration for all members has URLs by member. etcd knows them as texts.
var perMemberKeys = []string{"initial-advertise-peer-urls", "advertise-client-urls"}

// ForMember makes the configuration of one member out of one for all of them, as the operator writes it: the sidecar does
// the same for the pods that have one. pod is the name of the member's pod. Where neither of the two keys has URLs by
// member, the document is that of one member already and is returned as it is. Every error is a *KeyError. A configuration that
// no sidecar has edited goes through it before Parse.
func ForMember(document []byte, pod string) ([]byte, error) {
	mapping, warnings, err := decode(document)
	if err != nil || !slices.ContainsFunc(perMemberKeys, func(key string) bool { return isMapping(mapping[key]) }) {
		return document, nil //nolint:nilerr // Parse says what is wrong
	}
	if len(warnings) > 0 { // the new document would not show it any more
		return nil, problem("", "%s; take one out, nothing may be ambiguous in a file for several members", warnings[0])
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
	return rewritten(mapping, fmt.Sprintf("for %s from a configuration for all members", name))
}

func isMapping(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}

// memberName is the pod's, behind the prefix if the file has one.
func memberName(mapping map[string]any, pod string) (string, error) {
	const key = "member-name-prefix"
	prefix, isText := mapping[key].(string)
	switch {
	case pod == "":
		return "", problem(perMemberKeys[0], "has URLs by member, and POD_NAME does not say which of them this is; set it from metadata.name")
	case mapping[key] != nil && !isText:
		return "", problem(key, "must be text")
	case prefix != "":
		return prefix + "-" + pod, nil
	}
	return pod, nil
}

// urlsOf are the URLs of one member, in the form that etcd reads.
func urlsOf(name, key string, value any) (string, error) {
	members, ok := value.(map[string]any)
	if !ok {
		return "", problem(key, "must have URLs by member, as %s has", otherKey(key))
	}
	if members[name] == nil {
		return "", problem(key, "has no URLs for this member, %s, as POD_NAME or the host name has it", quote(name))
	}
	urls, err := urlList(name, key, members[name])
	return strings.Join(urls, ","), err
}

func otherKey(key string) string {
	return perMemberKeys[(slices.Index(perMemberKeys, key)+1)%len(perMemberKeys)]
}

// urlList takes a list of texts, or one text.
func urlList(name, key string, value any) (urls []string, _ error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, element := range list {
		url, ok := element.(string)
		if !ok || url == "" {
			return nil, problem(key, "must have a list of URLs for %s", quote(name))
		}
		urls = append(urls, url)
	}
	if len(urls) == 0 {
		return nil, problem(key, "must have a list of URLs for %s, not an empty one", quote(name))
	}
	return urls, nil
}

// completeCluster adds the members to the initial cluster that it does not name.
func completeCluster(mapping map[string]any) error {
	const key = "initial-cluster"
	given, ok := mapping[key].(string)
	if !ok && mapping[key] != nil {
		return problem(key, "must be text")
	}
	var pairs []string
	named := map[string]bool{}
	for pair := range strings.SplitSeq(given, ",") {
		if name, _, found := strings.Cut(pair, "="); pair != "" {
			pairs, named[name] = append(pairs, pair), found
		}
	}
	members, _ := mapping[perMemberKeys[0]].(map[string]any) // urlsOf says if it is none
	for _, name := range slices.SortedFunc(maps.Keys(members), byOrdinal) {
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

// byOrdinal puts etcd-main-10 behind etcd-main-9.
func byOrdinal(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// rewritten writes a document anew, and what it was made for into its first line.
func rewritten(mapping map[string]any, made string) ([]byte, error) {
	asJSON, err := json.Marshal(mapping)
	if err != nil {
		return nil, problem("", "cannot be written again")
	}
	document, err := yaml.JSONToYAML(asJSON)
	if err != nil {
		return nil, problem("", "cannot be written again")
	}
	return append(fmt.Appendf(nil, "# made %s\n", made), document...), nil
}

// Joining makes of a member's configuration the one with which it joins a cluster that exists and has these members, a list
// as in initial-cluster. The error is a *KeyError.
func Joining(document []byte, initialCluster string) ([]byte, error) {
	mapping, _, err := decode(document)
	if err != nil {
		return nil, err
	}
	mapping["initial-cluster"] = initialCluster
	mapping["initial-cluster-state"] = embed.ClusterStateFlagExisting
	return rewritten(mapping, "for a member that joins a cluster")
}
