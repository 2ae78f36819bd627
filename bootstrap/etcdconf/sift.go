package etcdconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// wrapperOwned lists the keys that configure where and how etcd writes its log messages. They are ignored, because
// the wrapper writes etcd's messages to its own log.
var wrapperOwned = []string{
	"logger", "log-outputs", "log-format", "enable-log-rotation", "log-rotation-config-json",
}

// mayBeNegative lists the keys for which a negative number means unlimited or disabled. All other keys must not be
// negative: a negative interval, for example, would make etcd busy-loop.
var mayBeNegative = []string{
	"quota-backend-bytes", "grpc-keepalive-min-time", "grpc-keepalive-interval", "grpc-keepalive-timeout",
}

// sidecarKeys lists the keys that configure the sidecar. etcd-druid adds these keys to every configuration.
var sidecarKeys = []string{"member-name-prefix", "next-cluster-version-compatible"}

// A filter drops unknown and wrapper-owned keys, checks the types of all other values, and collects warnings. Keys
// are case-insensitive, as in etcd's decoder, and are converted to etcd's spelling.
type filter struct{ sidecars, warnings []string }

func (s *filter) section(in []string, raw map[string]any, t reflect.Type) (map[string]any, error) {
	known, kept := keysOf(t), map[string]any{}
	for _, given := range slices.Sorted(maps.Keys(raw)) { // in the same order as etcd's decoder
		name, err := canonicalKey(given, known, t)
		path := append(slices.Clone(in), name)
		switch value, expected := raw[given], known[name]; {
		case err != nil:
			return nil, err
		case expected == nil && len(in) == 0 && slices.Contains(sidecarKeys, name):
			s.sidecars = append(s.sidecars, name)
		case expected == nil:
			s.warnings = append(s.warnings, unknownKey(in, name, known))
		case len(in) == 0 && slices.Contains(wrapperOwned, name):
			s.warnings = append(s.warnings, name+" is ignored because the wrapper writes the etcd log")
		default:
			if given != name {
				s.warnings = append(s.warnings, fmt.Sprintf("%q is interpreted as %s", given, strings.Join(path, ".")))
			}
			if err := s.keep(kept, path, value, expected); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

// keep adds a value to the document for etcd. A key without a value means the default, as in etcd's sample
// configuration.
func (s *filter) keep(kept map[string]any, path []string, value any, expected reflect.Type) error {
	name, key := path[len(path)-1], strings.Join(path, ".")
	isSection := expected.Kind() == reflect.Struct
	if value == nil && key != peerSection {
		if isSection {
			s.warnings = append(s.warnings, emptySection(key))
		}
		return nil
	}
	if _, again := kept[name]; again && isSection {
		return keyErrorf(key, "is set twice with different capitalization")
	}
	checked, err := s.value(path, value, expected)
	kept[name] = checked
	return err
}

// emptySection returns a warning about an empty section, because the user may have forgotten to indent its lines.
func emptySection(key string) string {
	if key == clientSection {
		return key + " is empty, so it does not secure the client listeners"
	}
	return key + " is empty"
}

func (s *filter) value(path []string, value any, expected reflect.Type) (any, error) {
	key := strings.Join(path, ".")
	switch expected.Kind() {
	case reflect.Struct:
		if mapping, ok := value.(map[string]any); ok {
			return s.section(path, mapping, expected)
		}
		return nil, typeError(key, value, expected)
	case reflect.Slice:
		return value, checkList(key, value, expected)
	default:
		return value, checkScalar(key, value, expected)
	}
}

func checkList(key string, value any, expected reflect.Type) error {
	if expected.Elem().Kind() != reflect.String {
		return keyErrorf(key, "cannot be set in a configuration file")
	}
	list, ok := value.([]any)
	if !ok {
		return typeError(key, value, expected)
	}
	for _, element := range list {
		if element == nil {
			return keyErrorf(key, "must be a list of strings without empty elements")
		}
		if err := checkScalar(key, element, expected.Elem()); err != nil {
			return err
		}
	}
	return nil
}

// checkScalar checks a value with etcd's decoder and names the key in errors.
func checkScalar(key string, value any, expected reflect.Type) error {
	if text, ok := value.(string); ok && strings.ContainsFunc(text, isControl) {
		return keyErrorf(key, "contains a non-printable character")
	}
	asJSON, err := json.Marshal(value)
	if err != nil {
		return typeError(key, value, expected)
	}
	into := reflect.New(expected)
	if err := json.Unmarshal(asJSON, into.Interface()); err != nil {
		return typeError(key, value, expected)
	}
	if into.Elem().CanInt() && into.Elem().Int() < 0 && !slices.Contains(mayBeNegative, key) {
		return keyErrorf(key, "must not be negative")
	}
	return nil
}

func isControl(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) }

// unknownKey returns a warning about an unknown key, with a suggestion.
func unknownKey(in []string, name string, known map[string]reflect.Type) string {
	within := func(name string) string { return strings.Join(append(slices.Clone(in), name), ".") }
	meant, best := "", 3 // with three edits, almost any word would match
	for _, candidate := range slices.Sorted(maps.Keys(known)) {
		if edits := distance(normalize(name), normalize(candidate)); edits < best && 3*edits < len(candidate) {
			meant, best = fmt.Sprintf(" (did you mean %s?)", within(candidate)), edits
		}
	}
	return fmt.Sprintf("ignoring unknown key %s%s", within(name), meant)
}

// normalize converts a key to lower case and replaces _ with -, because these differences are easy to overlook.
func normalize(key string) string { return strings.ToLower(strings.ReplaceAll(key, "_", "-")) }

// distance returns the Levenshtein distance between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// keysOf maps the YAML keys of a struct to their value types. Fields without a json tag are not keys, even though
// etcd's decoder would set them if the document contained their Go names.
func keysOf(t reflect.Type) map[string]reflect.Type {
	keys := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			maps.Copy(keys, keysOf(field.Type))
		case name != "" && name != "-":
			if keys[name] = field.Type; field.Type.Kind() == reflect.Pointer {
				keys[name] = field.Type.Elem()
			}
		}
	}
	return keys
}

// canonicalKey returns a key in etcd's spelling, or unchanged if the key is unknown. The names of Go fields are not
// keys, even though etcd's decoder would accept them.
func canonicalKey(given string, known map[string]reflect.Type, t reflect.Type) (string, error) {
	if known[given] != nil {
		return given, nil
	}
	for name := range known {
		if strings.EqualFold(name, given) {
			return name, nil
		}
	}
	for _, field := range reflect.VisibleFields(t) {
		if field.IsExported() && !field.Anonymous && field.Tag.Get("json") == "" && strings.EqualFold(field.Name, given) {
			return given, keyErrorf(shorten(given), "is an internal etcd variable, not a configuration key; remove it")
		}
	}
	return given, nil
}

func typeError(key string, value any, expected reflect.Type) error {
	return keyErrorf(key, "must be %s, not %s", describeType(expected), describeValue(value, expected))
}

// describeType describes the values that a type accepts.
func describeType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a whole number of nanoseconds, for example 5000000000 for 5s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text (in quotes if it looks like another type)"
	case t.Kind() == reflect.Struct:
		return "a section with its own keys"
	case t.Kind() == reflect.Slice:
		return "a list of strings"
	case reflect.Zero(t).CanUint():
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	default:
		return fmt.Sprintf("a whole number up to %d", int64(math.MaxInt64)>>(64-t.Bits()))
	}
}

// describeValue describes a value. Values are shown only if they are numbers and a number was expected, because
// anything else may be a credential.
func describeValue(value any, expected reflect.Type) string {
	switch v := value.(type) {
	case nil:
		return "empty"
	case bool:
		return "a boolean"
	case string:
		return "text"
	case json.Number:
		if zero := reflect.Zero(expected); zero.CanInt() || zero.CanUint() {
			return shorten(v.String())
		}
		return "a number"
	case []any:
		return "a list"
	default:
		return "a section"
	}
}
