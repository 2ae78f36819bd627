package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hiddeco/sshsig"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// sums is the file with the checksums of all others.
const sums = "SHA256SUMS"

func sum(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

// written calls visit with each file that was written up to now, by name.
func (r release) written(visit func(name, sum string)) error {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r.out, file.Name()))
		if err != nil {
			return err
		}
		visit(file.Name(), sum(content))
	}
	return nil
}

// provenance writes a statement about which commit the files were made of, by which Go, and how: an in-toto statement with a
// predicate of SLSA. It names no time and no machine; who trusts it trusts the key by which the checksums are signed.
func (r release) provenance(toolchain string) error {
	digest, err := r.imageDigest()
	if err != nil {
		return err
	}
	subjects := []*intoto.ResourceDescriptor{{Name: r.image + ":" + r.version, Digest: map[string]string{"sha256": digest}}}
	err = r.written(func(name, sum string) {
		subjects = append(subjects, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	})
	if err != nil {
		return err
	}
	parameters, err := structpb.NewStruct(map[string]any{"VERSION": r.version, "REPOSITORY": r.repository, "IMAGE": r.image})
	if err != nil {
		return err
	}
	at := r.repository + "/blob/" + r.version
	predicate, err := structOf(&slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: at + "/docs/contributing.md#a-release", ExternalParameters: parameters,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Uri: "git+" + r.repository + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.revision}},
				{Name: toolchain, Uri: "https://go.dev/dl/#" + toolchain},
			},
		},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: at + "/Makefile"}},
	})
	if err != nil {
		return err
	}
	statement := &intoto.Statement{
		Type: intoto.StatementTypeUri, Subject: subjects, PredicateType: "https://slsa.dev/provenance/v1", Predicate: predicate,
	}
	if err := statement.Validate(); err != nil {
		return fmt.Errorf("the provenance is not valid: %w", err)
	}
	text, err := protojson.Marshal(statement)
	if err != nil {
		return err
	}
	var stable, indented bytes.Buffer // protojson puts spaces here and there, and not always in the same places
	if err := json.Compact(&stable, text); err != nil {
		return err
	}
	if err := json.Indent(&indented, stable.Bytes(), "", "  "); err != nil {
		return err
	}
	return r.put("provenance.intoto.json", append(indented.Bytes(), '\n'))
}

// structOf is a predicate as statements have it.
func structOf(provenance *slsa.Provenance) (*structpb.Struct, error) {
	text, err := protojson.Marshal(provenance)
	if err != nil {
		return nil, err
	}
	var predicate structpb.Struct
	return &predicate, protojson.Unmarshal(text, &predicate)
}

// imageDigest is the SHA-256 of the image's index, by which a registry knows it.
func (r release) imageDigest() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.layout, "index.json"))
	if err != nil {
		return "", err
	}
	var index struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal(text, &index); err != nil {
		return "", err
	}
	if len(index.Manifests) == 0 {
		return "", fmt.Errorf("there is no image in %s", r.layout)
	}
	return strings.TrimPrefix(index.Manifests[0].Digest, "sha256:"), nil
}

// checksums writes what `sha256sum -c` reads.
func (r release) checksums() error {
	var lines strings.Builder
	err := r.written(func(name, sum string) { fmt.Fprintf(&lines, "%s  %s\n", sum, name) })
	if err != nil {
		return err
	}
	return r.put(sums, []byte(lines.String()))
}

// sign signs the checksums, and so all files, as `ssh-keygen -Y sign -n file` does. A signature by an Ed25519 or an RSA key has the
// same bytes each time.
func (r release) sign() error {
	if r.key == "" {
		return nil
	}
	text, err := os.ReadFile(r.key)
	if err != nil {
		return err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return fmt.Errorf("cannot read the key in %s: %w", r.key, err)
	}
	content, err := os.ReadFile(filepath.Join(r.out, sums))
	if err != nil {
		return err
	}
	signature, err := sshsig.Sign(bytes.NewReader(content), key, sshsig.HashSHA512, "file")
	if err != nil {
		return fmt.Errorf("cannot sign with the key in %s: %w", r.key, err)
	}
	return r.put(sums+".sig", sshsig.Armor(signature))
}
