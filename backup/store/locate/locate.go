// Package locate opens the store at a URL.
package locate

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/azblob"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/gcs"
	"etcd-wrapper/backup/store/s3"
	"etcd-wrapper/backup/store/wire"
)

// scheme describes a type of store: the format of its URLs, the keys that are allowed in the query, and a function
// that opens a store.
type scheme struct {
	form string
	keys []string
	open func(loc wire.Location, keys url.Values) (store.Store, error) // nil for a folder
}

// schemes lists the types of stores. Tests compare the list with the help, the README and the docs.
var schemes = map[string]scheme{
	"file":   {"file:///DIR", nil, nil},
	"s3":     {"s3://BUCKET/PREFIX", []string{"endpoint", "region", "path-style", "ca"}, openS3},
	"gs":     {"gs://BUCKET/PREFIX", []string{"endpoint", "ca"}, openGCS},
	"azblob": {"azblob://CONTAINER/PREFIX", []string{"endpoint", "account", "ca"}, openAzure},
}

// Forms returns the supported formats of store URLs, and the keys of all formats without duplicates.
func Forms() (forms, keys []string) {
	for _, name := range slices.Sorted(maps.Keys(schemes)) {
		forms = append(forms, schemes[name].form)
		keys = append(keys, schemes[name].keys...)
	}
	slices.Sort(keys)
	return forms, slices.Compact(keys)
}

// Open returns the store for a URL in one of the Forms. Open does not connect or read credentials, but returns an
// error if an environment variable is malformed. The error is a single sentence that names the flag, the key and
// the problem, but contains no secrets.
func Open(raw string) (store.Store, error) {
	opened, err := open(raw)
	if err != nil {
		return nil, fmt.Errorf("--backup-store: %w", err)
	}
	return opened, nil
}

// usage returns the error for a URL that is not in one of the Forms.
func usage() error {
	forms, _ := Forms()
	last := len(forms) - 1
	return fmt.Errorf("must be %s or %s", strings.Join(forms[:last], ", "), forms[last])
}

func open(raw string) (store.Store, error) {
	if strings.TrimSpace(raw) != raw { // a Secret created from a file often ends with a newline
		return nil, errors.New("has leading or trailing whitespace")
	}
	parsed, err := url.Parse(raw)
	if err != nil {
		return nil, usage() // the error from url.Parse would contain the URL
	}
	kind, known := schemes[parsed.Scheme]
	switch {
	case filepath.IsAbs(raw):
		return nil, fmt.Errorf("is a path; use file://%s", raw)
	case !known:
		return nil, usage()
	case parsed.User != nil:
		return nil, errors.New("must not contain credentials; use environment variables, files or workload identity")
	case parsed.Fragment != "" || parsed.Opaque != "":
		return nil, usage()
	}
	keys, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		return nil, errors.New("the query is malformed")
	}
	if err := checkKeys(parsed.Scheme, keys, kind.keys); err != nil {
		return nil, err
	}
	if parsed.Scheme == "file" {
		return openFolder(parsed)
	}
	loc := wire.Location{Bucket: parsed.Host, CAPath: keys.Get("ca")}
	if value := keys.Get("endpoint"); value != "" {
		if loc.Endpoint, err = wire.ParseEndpoint(value); err != nil {
			return nil, fmt.Errorf("key endpoint %w", err)
		}
	}
	if loc.Prefix, err = prefixOf(parsed.Path); err != nil {
		return nil, err
	}
	return kind.open(loc, keys)
}

func checkKeys(scheme string, keys url.Values, allowed []string) error {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		values := keys[key]
		switch {
		case !slices.Contains(allowed, key) && allowed == nil:
			return fmt.Errorf("%s:// does not support key %q", scheme, key)
		case !slices.Contains(allowed, key):
			return fmt.Errorf("%s:// does not support key %q; supported: %s", scheme, key, strings.Join(allowed, ", "))
		case len(values) > 1:
			return fmt.Errorf("duplicate key %s", key)
		case values[0] == "":
			return fmt.Errorf("key %s is empty", key)
		}
	}
	return nil
}

// maxPrefix is the maximum length of a prefix in bytes. It leaves room for object names, because S3 and Google Cloud
// Storage allow 1,024 bytes in total.
const maxPrefix = 400

// prefixOf converts the path of a URL to a name prefix, which is empty or ends with a slash.
func prefixOf(path string) (string, error) {
	path = strings.Trim(path, "/")
	if path == "" {
		return "", nil
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", fmt.Errorf("invalid prefix %q: must not contain the segments ., .. or an empty one", path)
		}
	}
	if len(path) > maxPrefix || !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 127 }) {
		return "", fmt.Errorf("invalid prefix: must be valid UTF-8 of at most %d bytes without control characters", maxPrefix)
	}
	return path + "/", nil
}

func openFolder(parsed *url.URL) (store.Store, error) {
	if parsed.Host != "" && parsed.Host != "localhost" {
		return nil, errors.New("the URL of a folder must have three slashes: file:///DIR")
	}
	return folder.New(parsed.Path)
}

func openS3(loc wire.Location, keys url.Values) (store.Store, error) {
	if loc.Endpoint != nil && strings.Trim(loc.Endpoint.Path, "/") != "" {
		return nil, errors.New("key endpoint must not include a path or bucket name")
	}
	style := keys.Get("path-style")
	if style != "" && style != "true" && style != "false" {
		return nil, errors.New("key path-style must be true or false")
	}
	return s3.New(loc, keys.Get("region"), style == "true")
}

func openGCS(loc wire.Location, _ url.Values) (store.Store, error) { return gcs.New(loc) }

func openAzure(loc wire.Location, keys url.Values) (store.Store, error) {
	return azblob.New(loc, keys.Get("account"))
}
