package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"etcd-wrapper/deploy/image/bill"
)

// archive is the program for a platform.
type archive struct {
	OS, Arch  string
	Go        string // that built it, as in go1.26.8
	Name, Sum string // of the file, and its SHA-256
	binary    string
}

// archives packs each binary, and writes its bill of materials.
func (r release) archives(binaries []string) (all []archive, err error) {
	for _, binary := range binaries {
		one, err := r.archive(binary)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	beside, err := r.beside(all)
	if err != nil {
		return nil, err
	}
	for i, one := range all {
		content, err := os.ReadFile(one.binary)
		if err != nil {
			return nil, err
		}
		packed, err := r.pack(append([]file{{program, 0o755, content}}, beside...))
		if err != nil {
			return nil, err
		}
		all[i].Sum = sum(packed)
		if err := r.put(one.Name, packed); err != nil {
			return nil, err
		}
		parts, err := bill.OfMaterials(one.binary, r.version)
		if err != nil {
			return nil, err
		}
		if err := r.put(strings.Replace(one.Name, ".tar.gz", ".cdx.json", 1), parts); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// archive asks a binary for its platform.
func (r release) archive(binary string) (archive, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return archive{}, err
	}
	is := map[string]string{}
	for _, setting := range info.Settings {
		is[setting.Key] = setting.Value
	}
	if is["CGO_ENABLED"] != "0" {
		return archive{}, fmt.Errorf("%s is built with CGO_ENABLED=%s; it would need the C library of the machine that built it", binary, is["CGO_ENABLED"])
	}
	return archive{
		OS: is["GOOS"], Arch: is["GOARCH"], Go: info.GoVersion, binary: binary,
		Name: fmt.Sprintf("%s_%s_%s_%s.tar.gz", program, r.version, is["GOOS"], is["GOARCH"]),
	}, nil
}

// beside are the files that lie beside each binary: the licence, and what the program for this machine says of itself, in an
// environment without settings: its manual page, and what completes its commands in each shell.
func (r release) beside(all []archive) ([]file, error) {
	license, err := os.ReadFile(filepath.Join(r.checkout, "LICENSE"))
	if err != nil {
		return nil, err
	}
	here := slices.IndexFunc(all, func(one archive) bool { return one.OS == runtime.GOOS && one.Arch == runtime.GOARCH })
	if here < 0 {
		return nil, fmt.Errorf("no binary is for %s on %s, where its manual page could be asked for", runtime.GOOS, runtime.GOARCH)
	}
	files := []file{{"LICENSE", 0o644, license}}
	for _, said := range []struct{ name, args string }{
		{program + ".1", "man"},
		{"completion/" + program + ".bash", "completion bash"},
		{"completion/_" + program, "completion zsh"},
		{"completion/" + program + ".fish", "completion fish"},
	} {
		command := exec.Command(all[here].binary, strings.Fields(said.args)...)
		command.Env, command.Stderr = []string{"HOME=$HOME"}, os.Stderr
		text, err := command.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		files = append(files, file{said.name, 0o644, text})
	}
	return files, nil
}

// copyImage takes over the image as `make image` has made it.
func (r release) copyImage() error {
	content, err := os.ReadFile(r.layout + ".tar")
	if err != nil {
		return err
	}
	return r.put(fmt.Sprintf("%s_%s_image.tar", program, r.version), content)
}

// chart packs the chart as one of this version, whose members run the image of this version.
func (r release) chart() error {
	changes := map[string][][2]string{
		"Chart.yaml": {{`version: .*`, "version: " + r.number()}, {`appVersion: .*`, "appVersion: " + r.version}},
		"values.yaml": {
			{`  repository: etcd-wrapper\n  tag: ""`, "  repository: " + r.image + "\n  tag: " + r.version},
			{`  runbook: docs/runbook.md#alerts`, "  runbook: " + r.repository + "/blob/" + r.version + "/docs/runbook.md#alerts"},
		},
	}
	var files []file
	folder := filepath.Join(r.checkout, "deploy", "chart")
	err := filepath.WalkDir(folder, func(path string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		within, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		for _, change := range changes[within] {
			lines := regexp.MustCompile("(?m)^" + change[0] + "$")
			if len(lines.FindAll(content, -1)) != 1 {
				return fmt.Errorf("in %s there is not one place like %q, for a release to write %q", path, change[0], change[1])
			}
			content = lines.ReplaceAllLiteral(content, []byte(change[1]))
		}
		files = append(files, file{"etcd/" + filepath.ToSlash(within), 0o644, content})
		return nil
	})
	if err != nil {
		return err
	}
	packed, err := r.pack(files)
	if err != nil {
		return err
	}
	return r.put(fmt.Sprintf("etcd-%s.tgz", r.number()), packed)
}

// file is one in an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack makes a tar.gz in which nothing is of the machine that makes it: no owner, and one time for all.
func (r release) pack(files []file) ([]byte, error) {
	var packed bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(compressed)
	for _, one := range files {
		header := tar.Header{Name: one.name, Mode: one.mode, Size: int64(len(one.content)), ModTime: r.created, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(one.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

func (r release) put(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}
