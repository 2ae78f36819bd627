package etcdconf

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// keysOf returns the YAML keys of a struct and the types of their values. Fields without a json tag are not keys, although
// etcd's decoder would fill them under their Go names (with a null where it expects a value, for one).
func keysOf(t reflect.Type) map[string]reflect.Type {
	keys := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			for inner, innerType := range keysOf(field.Type) {
				keys[inner] = innerType
			}
		case name != "" && name != "-":
			keys[name] = withoutPointer(field.Type)
		}
	}
	return keys
}

// spelled returns a key as etcd spells it, and an unknown one as it is. It refuses the names of Go fields: etcd's decoder
// would fill those, although they are no keys.
func spelled(given string, known map[string]reflect.Type, t reflect.Type) (string, error) {
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
			return given, problem(clip(given), "is the name of a variable inside etcd, not a key of its file; take it out")
		}
	}
	return given, nil
}

func withoutPointer(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func mistyped(key string, value any, expected reflect.Type) error {
	return problem(key, "must be %s, not %s", wanted(expected), given(value, expected))
}

// wanted describes the values that a type takes.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a whole number of nanoseconds, 5s being 5000000000"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text, in quotes if it looks like something else"
	case t.Kind() == reflect.Struct:
		return "a section with keys of its own"
	case t.Kind() == reflect.Slice:
		return "a list of texts"
	case reflect.Zero(t).CanUint():
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	default:
		return fmt.Sprintf("a whole number up to %d", int64(math.MaxInt64)>>(64-t.Bits()))
	}
}

// given describes a value. Only numbers are shown, and only where a number was expected: all else may be a credential.
func given(value any, expected reflect.Type) string {
	switch v := value.(type) {
	case nil:
		return "empty"
	case bool:
		return "a truth value"
	case string:
		return "text"
	case json.Number:
		if zero := reflect.Zero(expected); zero.CanInt() || zero.CanUint() {
			return clip(v.String())
		}
		return "a number"
	case []any:
		return "a list"
	default:
		return "a section"
	}
}
