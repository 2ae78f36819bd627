package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"etcd-wrapper/deploy/image/bill"
)

// bomType is the type of the artifact by which a bill of materials is attached to its image.
const bomType = types.MediaType("application/vnd.cyclonedx+json")

// release is what the labels say of the program.
type release struct {
	version, revision string
	created           time.Time
}

// product is an image for several platforms, and beside it the bills of materials that refer to its parts.
type product struct {
	index v1.ImageIndex
	bills []v1.Image
}

// assemble makes one image of each binary, whose platform the binary itself tells.
func assemble(r release, binaries []string) (*product, error) {
	base, err := baseLayer()
	if err != nil {
		return nil, err
	}
	built := &product{index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	for _, binary := range binaries {
		if err := built.add(r, base, binary); err != nil {
			return nil, fmt.Errorf("cannot make an image of %s: %w", binary, err)
		}
	}
	built.index = mutate.Annotations(built.index, r.labels()).(v1.ImageIndex)
	return built, nil
}

func (p *product) add(r release, base v1.Layer, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	platform := v1.Platform{OS: setting(info, "GOOS"), Architecture: setting(info, "GOARCH")}
	if setting(info, "CGO_ENABLED") != "0" {
		return fmt.Errorf("it is built with CGO_ENABLED=%s, and there is no C library in the image", setting(info, "CGO_ENABLED"))
	}
	content, err := programLayer(binary)
	if err != nil {
		return err
	}
	image, err := r.image(platform, base, content)
	if err != nil {
		return err
	}
	p.index = mutate.AppendManifests(p.index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	text, err := bill.OfMaterials(binary, r.version)
	if err != nil {
		return err
	}
	attachment, err := attached(text, image)
	p.bills = append(p.bills, attachment)
	return err
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func (r release) image(platform v1.Platform, layers ...v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = platform.OS, platform.Architecture, v1.Time{Time: r.created}
	file.Config = v1.Config{
		Entrypoint: []string{"/" + program},
		User:       fmt.Sprintf("%d:%d", user, user), // a number: kubelet can't tell whether a name is root's
		Env:        []string{"HOME=/" + home},
		WorkingDir: "/" + home,
		Labels:     r.labels(),
		ExposedPorts: map[string]struct{}{
			"2379/tcp": {}, "2380/tcp": {}, "9095/tcp": {},
		},
	}
	file.History = history(r, len(layers))
	return mutate.ConfigFile(image, file)
}

func history(r release, layers int) []v1.History {
	return slices.Repeat([]v1.History{{Created: v1.Time{Time: r.created}, CreatedBy: "make image"}}, layers)
}

func (r release) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       program,
		"org.opencontainers.image.description": "entrypoint of an etcd pod: decides whether the data may be opened, and runs etcd",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.revision,
		"org.opencontainers.image.created":     r.created.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
}

// attached is the bill of materials of an image as an artifact that refers to it.
func attached(text []byte, to v1.Image) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), bomType)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(text, bomType))
	if err != nil {
		return nil, err
	}
	subject.Platform, subject.MediaType = nil, cmp.Or(subject.MediaType, types.OCIManifestSchema1)
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}
