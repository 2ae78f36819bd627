package kubernetes

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/docs"
)

func TestReasons_documented(t *testing.T) {
	var told []string
	for _, row := range docs.Table(t, "`cannot renew the lease, …`, and the reason is", "what to do") {
		told = append(told, row[0])
	}
	all := strings.Join(told, "\n")
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError} {
		reason, _, _ := strings.Cut((&StatusError{Status: status, Kind: leases}).Error(), ":")
		reason, _, _ = strings.Cut(strings.TrimPrefix(reason, "the API server "), " Internal")
		assert.Contains(t, all, reason)
	}
	for _, reason := range []error{errTimeout, errNoLeader, errForeign} {
		assert.Contains(t, all, reason.Error())
	}
}
