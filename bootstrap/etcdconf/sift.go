package etcdconf

import (
	"encoding/json"
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

// sifting is a document divided into what etcd gets and what it does not.
type sifting struct {
	kept             map[string]any
	unknown, ignored []string
}

// sift drops unknown and wrapper-owned keys and checks the type of every other value.
func sift(raw map[string]any) (*sifting, error) {
	s := &sifting{}
	for _, key := range wrapperOwned {
		if _, present := raw[key]; present {
			s.ignored = append(s.ignored, key)
		}
	}
	slices.Sort(s.ignored)
	kept, err := s.section("", raw, reflect.TypeFor[settings]())
	s.kept = kept
	slices.Sort(s.unknown)
	return s, err
}

func (s *sifting) section(prefix string, raw map[string]any, t reflect.Type) (map[string]any, error) {
	known, kept := keysOf(t), map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		key, value := prefix+name, raw[name]
		expected, ok := known[name]
		switch {
		case !ok:
			s.unknown = append(s.unknown, key)
		case slices.Contains(s.ignored, key):
		case value == nil && expected.Kind() != reflect.Struct:
			// "key:" alone means the default, as in the sample configuration that etcd ships. An empty section is different:
			// it is what remains of one whose lines lost their indentation.
		default:
			checked, err := s.value(key, value, expected)
			if err != nil {
				return nil, err
			}
			kept[name] = checked
		}
	}
	return kept, nil
}

func (s *sifting) value(key string, value any, expected reflect.Type) (any, error) {
	switch expected.Kind() {
	case reflect.Struct:
		if mapping, ok := value.(map[string]any); ok {
			return s.section(key+".", mapping, expected)
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
	// Several of etcd's loops spin on a negative interval. Only the quota gives a negative number a meaning: no limit.
	if into.Elem().CanInt() && into.Elem().Int() < 0 && key != "quota-backend-bytes" {
		return problem(key, "must not be negative")
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) }
