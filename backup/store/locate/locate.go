// Package locate opens the store that a URL names.
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

// flag starts every error.
const flag = "--backup-store"

// scheme describes a kind of store: the form of its URLs, their keys, and how to open it.
type scheme struct {
	form string
	keys []string
	open func(location) (store.Store, error)
}

// schemes lists the kinds of stores. Tests compare help, README and docs with it.
var schemes = map[string]scheme{
	"file":   {"file:///DIR", nil, openFolder},
	"s3":     {"s3://BUCKET/PREFIX", []string{"endpoint", "region", "path-style", "ca"}, openS3},
	"gs":     {"gs://BUCKET/PREFIX", []string{"endpoint", "ca"}, openGCS},
	"azblob": {"azblob://CONTAINER/PREFIX", []string{"endpoint", "account", "ca"}, openAzure},
}

// Forms returns the forms of URLs of stores, and their keys, each once.
func Forms() (forms, keys []string) {
	for _, name := range slices.Sorted(maps.Keys(schemes)) {
		forms = append(forms, schemes[name].form)
		keys = append(keys, schemes[name].keys...)
	}
	slices.Sort(keys)
	return forms, slices.Compact(keys)
}

// Open returns the store at a URL in one of the Forms. It contacts nothing and reads no credentials, but rejects malformed
// environment variables. The error is one sentence that names the flag, the key and the problem, and repeats no secret.
func Open(raw string) (store.Store, error) {
	found, kind, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	opened, err := kind.open(found)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return opened, nil
}

// location is a parsed URL.
type location struct {
	bucket string
	path   string // of a folder, or the prefix, which is empty or ends with a slash
	keys   url.Values
	wire   wire.Options
	at     *url.URL // nil without endpoint=
}

// usage returns the error for a URL in none of the Forms.
func usage() error {
	forms, _ := Forms()
	last := len(forms) - 1
	return fmt.Errorf("is not %s or %s", strings.Join(forms[:last], ", "), forms[last])
}

func parse(raw string) (found location, kind scheme, err error) {
	if strings.TrimSpace(raw) != raw { // as in a Secret that was made from a file; the sentence below could not show it
		return found, kind, errors.New("starts or ends with a space or a line break")
	}
	parsed, err := url.Parse(raw)
	if err != nil {
		return found, kind, usage() // url's error would repeat the URL
	}
	kind, known := schemes[parsed.Scheme]
	switch {
	case filepath.IsAbs(raw):
		return found, kind, fmt.Errorf("is a path: write file://%s", raw)
	case !known:
		return found, kind, usage()
	case parsed.User != nil:
		return found, kind, errors.New("must not hold credentials; they come from the environment, files or workload identity")
	case parsed.Fragment != "" || parsed.Opaque != "":
		return found, kind, usage()
	}
	found = location{bucket: parsed.Host, path: parsed.Path}
	if found.keys, err = url.ParseQuery(parsed.RawQuery); err != nil {
		return found, kind, errors.New("what follows the question mark is malformed")
	}
	return found, kind, found.check(parsed.Scheme, kind.keys)
}

func (l *location) check(scheme string, allowed []string) error {
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		values := l.keys[key]
		switch {
		case !slices.Contains(allowed, key):
			return fmt.Errorf("%s:// has no key %q%s", scheme, key, suggestion(allowed))
		case len(values) > 1:
			return fmt.Errorf("key %s is given twice", key)
		case values[0] == "":
			return fmt.Errorf("key %s is empty", key)
		}
	}
	l.wire.CAPath = l.keys.Get("ca")
	if value := l.keys.Get("endpoint"); value != "" {
		endpoint, err := wire.ParseEndpoint(value)
		if err != nil {
			return fmt.Errorf("key endpoint %w", err)
		}
		l.at = endpoint
	}
	return nil
}

func suggestion(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return "; it has " + strings.Join(keys, ", ")
}

// prefix turns the path into the prefix of all names.
func (l *location) prefix() (string, error) {
	path := strings.Trim(l.path, "/")
	if path == "" {
		return "", nil
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", fmt.Errorf("prefix %q has an empty or relative part", path)
		}
	}
	if len(path) > maxPrefix || !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 127 }) {
		return "", fmt.Errorf("the prefix has control characters, or more than %d bytes", maxPrefix)
	}
	return path + "/", nil
}

// maxPrefix leaves room for names: S3 and Google allow 1,024 bytes in total.
const maxPrefix = 400

func openFolder(l location) (store.Store, error) {
	if l.bucket != "" && l.bucket != "localhost" {
		return nil, errors.New("a folder has three slashes: file:///DIR")
	}
	return folder.New(l.path)
}

func openS3(l location) (store.Store, error) {
	prefix, err := l.prefix()
	if err != nil {
		return nil, err
	}
	if l.at != nil && strings.Trim(l.at.Path, "/") != "" {
		return nil, errors.New("key endpoint has a path; the bucket is not a part of it")
	}
	style := l.keys.Get("path-style")
	if style != "" && style != "true" && style != "false" {
		return nil, errors.New("key path-style is neither true nor false")
	}
	return s3.New(s3.Options{
		Bucket: l.bucket, Prefix: prefix, Endpoint: l.at, Region: l.keys.Get("region"), PathStyle: style == "true", Wire: l.wire,
	})
}

func openGCS(l location) (store.Store, error) {
	prefix, err := l.prefix()
	if err != nil {
		return nil, err
	}
	return gcs.New(gcs.Options{Bucket: l.bucket, Prefix: prefix, Endpoint: l.at, Wire: l.wire})
}

func openAzure(l location) (store.Store, error) {
	prefix, err := l.prefix()
	if err != nil {
		return nil, err
	}
	return azblob.New(azblob.Options{
		Container: l.bucket, Prefix: prefix, Account: l.keys.Get("account"), Endpoint: l.at, Wire: l.wire,
	})
}
