package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/readiness/status"
)

// answerWithin bounds a request to the wrapper's own server, which answers from memory, on any machine.
const answerWithin = 10 * time.Second

// Readyz returns the status code of GET /readyz, 0 if there is no answer.
func (r *Run) Readyz() int {
	code, _ := r.Request(http.MethodGet, "/readyz")
	return code
}

// Request returns the status code and the whole body of a reply, 0 if there is none. As a kubelet it checks no certificate:
// see Pod.ShownToClients.
func (r *Run) Request(method, path string) (int, string) {
	r.T.Helper()
	request, err := http.NewRequest(method, r.URL(path), nil)
	require.NoError(r.T, err)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: certificates.Insecure()}
	response, err := (&http.Client{Transport: transport, Timeout: answerWithin}).Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close() // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// URL is where the wrapper's own server answers.
func (r *Run) URL(path string) string {
	return fmt.Sprintf("%s://127.0.0.1:%d%s", Scheme(r.Pod.Trust), r.Pod.Port, path)
}

// Status returns the document of GET /lifecycle, an empty one if there is no answer.
func (r *Run) Status() (document status.Document) {
	r.T.Helper()
	if code, body := r.Request(http.MethodGet, "/lifecycle"); code == http.StatusOK {
		require.NoError(r.T, json.Unmarshal([]byte(body), &document))
	}
	return document
}
