// Command sidecar implements the part of etcd-backup-restore's API that the wrapper uses. Every initialization
// succeeds without any validation, and no backups are made. Like the real sidecar, it fails if POD_NAME or
// POD_NAMESPACE is not set or if it cannot write to its home directory. Its flags for TLS and the connection to etcd
// are those of the real sidecar.
package main

import (
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

const source = "/var/etcd/config/etcd.conf.yaml"

type sidecar struct {
	mu     sync.Mutex
	status string
}

func main() {
	for _, name := range []string{"POD_NAME", "POD_NAMESPACE", "STORAGE_CONTAINER"} {
		if os.Getenv(name) == "" {
			log.Fatalf("%s is not set", name)
		}
	}
	args := arguments()
	s := &sidecar{status: "New"}
	http.HandleFunc("GET /initialization/status", s.serveStatus)
	http.HandleFunc("GET /initialization/start", s.start)
	http.HandleFunc("GET /config", config)
	http.HandleFunc("GET /snapshot/full", full)
	go args.reachEtcd()
	if args["server-cert"] != "" {
		log.Fatal(http.ListenAndServeTLS(":8080", args["server-cert"], args["server-key"], nil))
	}
	log.Fatal(http.ListenAndServe(":8080", nil))
}

// serveStatus returns the status. Each result is returned only once.
func (s *sidecar) serveStatus(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = w.Write([]byte(s.status))
	s.status = "New"
}

func (s *sidecar) start(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log.Printf("initialization requested in mode %s", r.URL.Query().Get("mode"))
	s.status = "Successful"
}

// full sends the response that the real sidecar sends after a full snapshot.
func full(w http.ResponseWriter, _ *http.Request) {
	log.Print("full snapshot requested")
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"kind":"Full","startRevision":0,"lastRevision":1}` + "\n"))
}

// config serves this member's configuration, which is derived from the ConfigMap shared by all members.
func config(w http.ResponseWriter, r *http.Request) {
	text, err := served()
	stored := filepath.Join(os.Getenv("HOME"), "etcd.conf.yaml")
	if err == nil {
		err = os.WriteFile(stored, text, 0o600)
	}
	if err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-yaml")
	http.ServeFile(w, r, stored)
}

func served() ([]byte, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	name := os.Getenv("POD_NAME")
	document["name"] = name
	for _, key := range []string{"initial-advertise-peer-urls", "advertise-client-urls"} {
		var urls []string
		for _, url := range document[key].(map[string]any)[name].([]any) {
			urls = append(urls, url.(string))
		}
		document[key] = strings.Join(urls, ",")
	}
	return yaml.Marshal(document)
}
