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

// decode reads the one YAML mapping in document. Numbers stay json.Number, since a float64 cannot hold every int64.
func decode(document []byte) (map[string]any, error) {
	if len(document) > maxBytes {
		return nil, problem("", "has %d bytes, more than the %d that are allowed", len(document), maxBytes)
	}
	if err := checkSyntax(document); err != nil {
		return nil, err
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil { // the cause would quote the value
		return nil, problem("", "has a key or a value that cannot be expressed in JSON, such as .nan or a null key")
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	var mapping map[string]any
	if err := decoder.Decode(&mapping); err != nil {
		return nil, problem("", "is not a mapping of keys to values")
	}
	return mapping, nil
}

// checkSyntax refuses what etcd's reader passes over in silence: keys given twice, and documents after the first.
func checkSyntax(document []byte) error {
	decoder := goyaml.NewDecoder(bytes.NewReader(document))
	decoder.SetStrict(true)
	var first, second any
	if err := decoder.Decode(&first); err != nil && !errors.Is(err, io.EOF) {
		return syntaxProblem(err)
	}
	if first == nil {
		return problem("", "is empty")
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return problem("", "has more than one YAML document")
	}
	return nil
}

func syntaxProblem(err error) error {
	var duplicates *goyaml.TypeError
	if !errors.As(err, &duplicates) {
		return problem("", "is not valid YAML (%s)", clip(err.Error()))
	}
	var line int
	var key string
	if _, scanErr := fmt.Sscanf(duplicates.Errors[0], "line %d: key %q already set in map", &line, &key); scanErr != nil {
		return problem("", "has a key that is given twice")
	}
	return problem(clip(key), "is given twice, again on line %d", line)
}
