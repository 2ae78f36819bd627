package status

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// patchEvent is the type of the events that have a merge patch instead of a document.
const patchEvent = "patch"

// decodeObject returns the JSON object that a value is encoded as. Numbers keep all digits.
func decodeObject(value any) (object map[string]any, err error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	err = decoder.Decode(&object)
	return object, err
}

// mergePatch returns the JSON merge patch (RFC 7396) that changes one object into another.
func mergePatch(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for key, value := range to {
		before, existed := from[key]
		objectBefore, isObject := before.(map[string]any)
		if object, ok := value.(map[string]any); ok && isObject {
			if nested := mergePatch(objectBefore, object); len(nested) > 0 {
				patch[key] = nested
			}
		} else if !existed || !reflect.DeepEqual(before, value) {
			patch[key] = value
		}
	}
	for key := range from {
		if _, exists := to[key]; !exists {
			patch[key] = nil
		}
	}
	return patch
}

// applyPatch applies a merge patch to an object.
func applyPatch(object, patch map[string]any) {
	for key, value := range patch {
		nested, isObject := value.(map[string]any)
		target, exists := object[key].(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject && exists:
			applyPatch(target, nested)
		default:
			object[key] = value
		}
	}
}
