package stories

import (
	"context"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evict asks the API server to evict a pod, as kubectl drain does.
func (w *environment) evict(pod string) error {
	return w.Client.PolicyV1().Evictions(w.namespace).Evict(context.Background(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: w.namespace},
	})
}

func (w *environment) secret(name string, files map[string]string) {
	w.t.Helper()
	_, err := w.Client.CoreV1().Secrets(w.namespace).Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: files,
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
}
