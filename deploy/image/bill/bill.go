// Package bill lists what is linked into a binary of Go, for who has to know whether a vulnerable module is in it. Image and
// release have the same list.
package bill

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/CycloneDX/cyclonedx-go"
)

// OfMaterials returns a CycloneDX document in JSON of what Go says it linked into the binary, which is a file, of that version. It
// names no time and no serial number, by which two of the same binary would differ.
func OfMaterials(binary, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum, program := sha256.Sum256(content), filepath.Base(binary)
	subject := cyclonedx.Component{
		BOMRef: program, Type: cyclonedx.ComponentTypeApplication, Name: program, Version: version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	parts := []cyclonedx.Component{library("std", info.GoVersion)}
	parts[0].PackageURL = "pkg:golang/std@" + info.GoVersion[len("go"):]
	for _, module := range info.Deps {
		parts = append(parts, library(linked(module).Path, linked(module).Version))
	}
	document := cyclonedx.NewBOM()
	document.Metadata = &cyclonedx.Metadata{Component: &subject}
	document.Components, document.Dependencies = &parts, dependencies(program, parts)
	var text bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(document)
	return text.Bytes(), err
}

func library(path, version string) cyclonedx.Component {
	name := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	return cyclonedx.Component{BOMRef: name, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: name}
}

// linked is the module that a replace line has put in another's place.
func linked(module *debug.Module) *debug.Module {
	if module.Replace != nil {
		return module.Replace
	}
	return module
}

func dependencies(program string, parts []cyclonedx.Component) *[]cyclonedx.Dependency {
	var all []string
	for _, part := range parts {
		all = append(all, part.BOMRef)
	}
	return &[]cyclonedx.Dependency{{Ref: program, Dependencies: &all}}
}
