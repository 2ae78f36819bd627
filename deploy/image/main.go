// Command image packs built binaries of etcd-wrapper into an OCI image, one for every platform, without a daemon and
// without a base image. `make image` calls it. It writes an OCI layout, a folder that skopeo, crane, podman and containerd
// read, and pushes the same to a registry if told to. Equal binaries give equal digests, on any machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var r release
	created := flag.Int64("created", 0, "time of the image, in seconds since 1970: that of the commit")
	out := flag.String("out", "", "the folder of the OCI layout; what is there is replaced")
	tag := flag.String("tag", "latest", "tag under which the layout has it")
	push := flag.String("push", "", "where to push it, REGISTRY/REPOSITORY:TAG; empty pushes nothing")
	flag.StringVar(&r.version, "version", "unknown", "version of the program, for the labels")
	flag.StringVar(&r.revision, "revision", "unknown", "commit of the program, for the labels")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "image -out FOLDER [flags] BINARY...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(64)
	}
	r.created = time.Unix(*created, 0).UTC()
	if err := run(r, flag.Args(), *out, *tag, *push); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(r release, binaries []string, out, tag, push string) error {
	built, err := assemble(r, binaries)
	if err != nil {
		return err
	}
	if err := built.write(out, tag); err != nil {
		return fmt.Errorf("cannot write the image to %s: %w", out, err)
	}
	digest, err := built.index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s holds etcd-wrapper %s, %s\n", out, r.version, digest)
	if push == "" {
		return nil
	}
	if err := built.push(push); err != nil {
		return fmt.Errorf("cannot push the image: %w", err)
	}
	fmt.Printf("pushed as %s, to be named %s@%s\n", push, push, digest)
	return nil
}
