// Command release writes what is published of a version of etcd-wrapper: an archive for each platform, the image, the chart,
// bills of materials, a formula and a krew manifest, the provenance, checksums of all that, and their signature. `make release`
// builds the binaries and the image and calls it. The same commit and the same Go give the same bytes, on any machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// program is what is released.
const program = "etcd-wrapper"

// release is a version, and where it is made of and goes to.
type release struct {
	version    string    // v1.0.0
	revision   string    // the commit
	created    time.Time // when that was committed; every file in an archive has this time
	repository string    // where the source is: a URL below which releases can be downloaded
	image      string    // registry and repository from which the chart takes the image
	checkout   string    // the root of the source
	layout     string    // a folder with the image as an OCI layout; beside it the same in one file, .tar
	key        string    // an SSH private key, with which the checksums are signed; empty signs nothing
	out        string    // the folder that is written
}

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "version, as in v1.0.0")
	flag.StringVar(&r.revision, "revision", "", "commit of the source")
	created := flag.Int64("created", 0, "time of that commit, in seconds since 1970")
	flag.StringVar(&r.repository, "repository", "", "URL of the source, below which releases can be downloaded")
	flag.StringVar(&r.image, "image", program, "registry and repository from which the chart takes the image")
	flag.StringVar(&r.checkout, "checkout", "../..", "root of the source")
	flag.StringVar(&r.layout, "layout", "../../bin/image", "the folder with the image's OCI layout, beside which it is in one file, .tar")
	flag.StringVar(&r.key, "key", "", "file with an SSH private key that signs the checksums; empty signs nothing")
	flag.StringVar(&r.out, "out", "", "the folder that is written; what is there is replaced")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "release -out FOLDER -version VERSION [flags] BINARY...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if r.out == "" || r.version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(64)
	}
	r.created = time.Unix(*created, 0).UTC()
	if err := r.write(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Printf("%s holds %s %s\n", r.out, program, r.version)
}

// write makes the release of binaries. What is said about files comes after them.
func (r release) write(binaries []string) error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return err
	}
	archives, err := r.archives(binaries)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		r.copyImage,
		r.chart,
		func() error { return r.packages(archives) },
		func() error { return r.provenance(archives[0].Go) },
		r.checksums,
		r.sign,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// number is the version without its v, as charts and formulas have it.
func (r release) number() string { return strings.TrimPrefix(r.version, "v") }
