package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// document is a text that never changes. It is compressed at the first request: a start of etcd must not wait for that.
type document struct {
	contentType, policy string
	plain               []byte
	zipped              func() []byte
	tag                 string // of its content, for the ETag, without quotes
}

func newDocument(contentType, policy, text string) *document {
	return &document{
		contentType: contentType, policy: policy, plain: []byte(text),
		zipped: sync.OnceValue(func() []byte { return compressed(text) }),
		tag:    fmt.Sprintf("%.8x", sha256.Sum256([]byte(policy+text))),
	}
}

func compressed(text string) []byte {
	var zipped bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression) // cannot fail: the level exists
	_, _ = zip.Write([]byte(text))                               // cannot fail: it is a buffer
	_ = zip.Close()
	return zipped.Bytes()
}

// ServeHTTP serves the document. A browser may keep it, but asks each time whether it has changed.
func (d *document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	body, tag := d.plain, `"`+d.tag+`"`
	if acceptsGzip(r.Header) {
		body, tag = d.zipped(), `"`+d.tag+`-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Security-Policy", d.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", tag)
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", d.contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that has left misses nothing
}

// acceptsGzip reports whether the client accepts gzip: it names it, with a weight other than 0.
func acceptsGzip(h http.Header) bool {
	for coding := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(strings.ToLower(coding), " ", ""), ";q=")
		if name == "gzip" {
			q, err := strconv.ParseFloat(weight, 64)
			return weight == "" || err == nil && q > 0
		}
	}
	return false
}
