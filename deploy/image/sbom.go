package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials is a CycloneDX document of what Go says it linked into the binary. It names no time and no serial number,
// by which two of the same binary would differ.
func billOfMaterials(r release, binary string, info *buildinfo.BuildInfo) ([]byte, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	subject := cyclonedx.Component{
		BOMRef: program, Type: cyclonedx.ComponentTypeContainer, Name: program, Version: r.version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	parts := []cyclonedx.Component{library("std", info.GoVersion)}
	parts[0].PackageURL = "pkg:golang/std@" + info.GoVersion[len("go"):]
	for _, module := range info.Deps {
		parts = append(parts, library(linked(module).Path, linked(module).Version))
	}
	document := cyclonedx.NewBOM()
	document.Metadata = &cyclonedx.Metadata{Component: &subject}
	document.Components, document.Dependencies = &parts, dependencies(parts)
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

func dependencies(parts []cyclonedx.Component) *[]cyclonedx.Dependency {
	var all []string
	for _, part := range parts {
		all = append(all, part.BOMRef)
	}
	return &[]cyclonedx.Dependency{{Ref: program, Dependencies: &all}}
}
