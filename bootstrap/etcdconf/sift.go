package etcdconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// wrapperOwned are the keys that decide where etcd's log lines go: into the wrapper's one stream, whatever they say.
var wrapperOwned = []string{
	"logger", "log-outputs", "log-format", "enable-log-rotation", "log-rotation-config-json",
}

// mayBeNegative are the keys for which a negative number means that there is no limit, or nothing of the kind. Several of
// etcd's loops spin on other negative intervals.
var mayBeNegative = []string{
	"quota-backend-bytes", "grpc-keepalive-min-time", "grpc-keepalive-interval", "grpc-keepalive-timeout",
}

// sifting is a document divided into what etcd gets and what it does not.
type sifting struct {
	kept                        map[string]any
	unknown                     []UnknownKey
	sidecars, ignored, warnings []string
}

// sift drops unknown and wrapper-owned keys and checks the type of every other value. Keys are those of etcd's decoder,
// which does not mind their letter case: what is kept has etcd's own spelling.
func sift(raw map[string]any) (*sifting, error) {
	s := &sifting{}
	kept, err := s.section(nil, raw, reflect.TypeFor[settings]())
	s.kept = kept
	slices.SortFunc(s.unknown, func(a, b UnknownKey) int { return strings.Compare(a.Key, b.Key) })
	slices.Sort(s.sidecars)
	slices.Sort(s.ignored)
	return s, err
}

func (s *sifting) section(in []string, raw map[string]any, t reflect.Type) (map[string]any, error) {
	known, kept := keysOf(t), map[string]any{}
	for _, given := range slices.Sorted(maps.Keys(raw)) { // the order in which etcd's decoder sees them
		name, err := spelled(given, known, t)
		path := append(slices.Clone(in), name)
		switch value, expected := raw[given], known[name]; {
		case err != nil:
			return nil, err
		case expected == nil && len(in) == 0 && slices.Contains(sidecarKeys, name):
			s.sidecars = append(s.sidecars, name)
		case expected == nil:
			s.unknown = append(s.unknown, unknownKey(in, name, known))
		case len(in) == 0 && slices.Contains(wrapperOwned, name):
			s.ignored = append(s.ignored, given)
		default:
			if given != name {
				s.warnings = append(s.warnings, fmt.Sprintf("%q is read as %s", given, strings.Join(path, ".")))
			}
			if err := s.keep(kept, path, value, expected); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

// keep puts the value of a key with its place among those that etcd gets. "key:" alone means the default, as in the
// sample configuration that etcd ships.
func (s *sifting) keep(kept map[string]any, path []string, value any, expected reflect.Type) error {
	name, key := path[len(path)-1], strings.Join(path, ".")
	isSection := expected.Kind() == reflect.Struct
	if value == nil && key != peerSection {
		if isSection {
			s.warnings = append(s.warnings, emptySection(key))
		}
		return nil
	}
	if _, again := kept[name]; again && isSection {
		return problem(key, "is given twice, in different letter case")
	}
	checked, err := s.value(path, value, expected)
	kept[name] = checked
	return err
}

// emptySection is worth a warning: it is what remains of a section whose lines lost their indentation.
func emptySection(key string) string {
	if key == clientSection {
		return key + " is empty, so nothing in it protects the clients' listeners"
	}
	return key + " is empty"
}

func (s *sifting) value(path []string, value any, expected reflect.Type) (any, error) {
	key := strings.Join(path, ".")
	switch expected.Kind() {
	case reflect.Struct:
		if mapping, ok := value.(map[string]any); ok {
			return s.section(path, mapping, expected)
		}
		return nil, mistyped(key, value, expected)
	case reflect.Slice:
		return value, checkList(key, value, expected)
	default:
		return value, checkScalar(key, value, expected)
	}
}

func checkList(key string, value any, expected reflect.Type) error {
	if expected.Elem().Kind() != reflect.String {
		return problem(key, "cannot be set in a configuration file")
	}
	list, ok := value.([]any)
	if !ok {
		return mistyped(key, value, expected)
	}
	for _, element := range list {
		if element == nil {
			return problem(key, "must be a list of texts, not a list with an empty element")
		}
		if err := checkScalar(key, element, expected.Elem()); err != nil {
			return err
		}
	}
	return nil
}

// checkScalar asks the decoder that etcd uses whether the value fits, one value at a time so that the key is known.
func checkScalar(key string, value any, expected reflect.Type) error {
	if text, ok := value.(string); ok && strings.ContainsFunc(text, unprintable) {
		return problem(key, "contains a character that cannot be printed")
	}
	asJSON, err := json.Marshal(value)
	if err != nil {
		return mistyped(key, value, expected)
	}
	into := reflect.New(expected)
	if err := json.Unmarshal(asJSON, into.Interface()); err != nil {
		return mistyped(key, value, expected)
	}
	if into.Elem().CanInt() && into.Elem().Int() < 0 && !slices.Contains(mayBeNegative, key) {
		return problem(key, "must not be negative")
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) }
