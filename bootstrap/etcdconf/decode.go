package etcdconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// maxBytes bounds what is worth parsing: real configurations have two or three thousand bytes.
const maxBytes = 1 << 20

// decode reads the first YAML mapping in document, as etcd does. Numbers stay json.Number, since a float64 cannot hold
// every int64. The warnings are about what etcd passes over in silence.
func decode(document []byte) (mapping map[string]any, warnings []string, err error) {
	if len(document) > maxBytes {
		return nil, nil, problem("", "has %d bytes, more than the %d that are allowed", len(document), maxBytes)
	}
	warnings, err = checkSyntax(document)
	if err != nil {
		return nil, nil, err
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil { // the cause would quote the value
		return nil, nil, problem("", "has a key or a value that cannot be expressed in JSON, such as .nan or a null key")
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&mapping); err != nil {
		return nil, nil, problem("", "is not a mapping of keys to values")
	}
	return mapping, warnings, nil
}

// checkSyntax warns of keys that are given twice, and of documents after the first.
func checkSyntax(document []byte) (warnings []string, err error) {
	decoder := goyaml.NewDecoder(bytes.NewReader(document))
	decoder.SetStrict(true)
	var first, second any
	err = decoder.Decode(&first)
	var duplicates *goyaml.TypeError
	switch {
	case errors.As(err, &duplicates):
		for _, text := range duplicates.Errors {
			warnings = append(warnings, duplicateKey(text))
		}
	case err != nil && !errors.Is(err, io.EOF):
		return nil, problem("", "not valid YAML (%s)", clip(err.Error()))
	case first == nil:
		return nil, problem("", "is empty")
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		warnings = append(warnings, "only the first YAML document counts")
	}
	return warnings, nil
}

func duplicateKey(text string) string {
	var line int
	var key string
	if _, err := fmt.Sscanf(text, "line %d: key %q already set in map", &line, &key); err != nil {
		return "a key is given twice: the last one counts"
	}
	return fmt.Sprintf("%s is given twice, again on line %d: the last one counts", clip(key), line)
}
