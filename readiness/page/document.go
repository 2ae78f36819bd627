package page

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

// document serves a text that never changes. A browser may keep it, but asks each time whether it has changed.
func document(contentType, policy, text string) http.Handler {
	header := map[string]string{
		"Content-Security-Policy": policy,
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
		"Cache-Control":           "no-cache",
		"Content-Type":            contentType,
		"ETag":                    fmt.Sprintf(`W/"%.8x"`, sha256.Sum256([]byte(policy+text))), // weak: compressed or not
	}
	return gzhttp.GzipHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}))
}
