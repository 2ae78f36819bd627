package main

import (
	"bytes"
	_ "embed"
	"text/template"
)

var (
	//go:embed formula.rb.tmpl
	formula string
	//go:embed krew.yaml.tmpl
	krew string
)

// packages writes what package managers read: a formula for Homebrew, and a manifest for krew, by which the program is
// `kubectl etcd`: krew wants a manifest to be named after its plugin.
func (r release) packages(archives []archive) error {
	data := map[string]any{
		"Version": r.version, "Number": r.number(), "Home": r.repository, "Archives": archives,
		"Systems":  map[string]string{"darwin": "on_macos", "linux": "on_linux"}, // a formula may have each of the blocks once
		"Download": r.repository + "/releases/download/" + r.version + "/",
	}
	for name, text := range map[string]string{program + ".rb": formula, "etcd.yaml": krew} {
		var filled bytes.Buffer
		parsed, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			return err
		}
		if err := parsed.Execute(&filled, data); err != nil {
			return err
		}
		if err := r.put(name, filled.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
