package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

// flags maps the names of command-line flags to their values.
type flags map[string]string

func arguments() flags {
	args := flags{}
	for _, argument := range os.Args[1:] {
		if strings.Contains(argument, "$(") {
			log.Fatalf("%s refers to a variable that is not set", argument)
		}
		name, value, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		if _, twice := args[name]; twice {
			log.Fatalf("--%s is set twice", name)
		}
		args[name] = value
	}
	return args
}

// reachEtcd sends requests to etcd's configured address until one succeeds, and logs the success.
func (f flags) reachEtcd() {
	for last := ""; ; time.Sleep(time.Second) {
		err := f.askEtcd()
		if err == nil {
			log.Printf("connected to %s", f["endpoints"])
			return
		}
		if err.Error() != last {
			last = err.Error()
			log.Print(last)
		}
	}
}

func (f flags) askEtcd() error {
	client := &http.Client{Timeout: 5 * time.Second}
	if f["insecure-transport"] == "false" {
		config, err := f.identity()
		if err != nil {
			return err
		}
		client.Transport = &http.Transport{TLSClientConfig: config}
	}
	reply, err := client.Get(f["endpoints"] + "/version")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", f["endpoints"], reply.Status)
	}
	return nil
}

// identity returns a TLS configuration that uses the client certificate and trusts the CA that issued etcd's server
// certificate.
func (f flags) identity() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f["cert"], f["key"])
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(f["cacert"])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s contains no certificate", f["cacert"])
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}
