package node

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServer is the name that is in the API server's certificate: a real node would tell pods an address.
const apiServer = "kubernetes.default.svc"

// environment is where the API server is, which every pod is told, and what a container's manifest says of its variables: those of whole
// ConfigMaps and Secrets first, then the ones with names, in which $(NAME) is expanded.
func (n *Node) environment(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (map[string]string, error) {
	all := map[string]string{"KUBERNETES_SERVICE_HOST": apiServer, "KUBERNETES_SERVICE_PORT": "443"}
	for _, source := range container.EnvFrom {
		if err := n.addAll(ctx, pod.Namespace, source, all); err != nil {
			return nil, err
		}
	}
	for _, variable := range container.Env {
		value, err := fieldOrText(pod, variable)
		if err != nil {
			return nil, err
		}
		all[variable.Name] = expand(value, all)
	}
	return all, nil
}

func (n *Node) addAll(ctx context.Context, namespace string, source corev1.EnvFromSource, to map[string]string) error {
	if source.ConfigMapRef != nil {
		found, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, source.ConfigMapRef.Name, metav1.GetOptions{})
		if err != nil {
			return unlessOptional(err, source.ConfigMapRef.Optional)
		}
		for key, value := range found.Data {
			to[source.Prefix+key] = value
		}
	}
	if source.SecretRef != nil {
		found, err := n.client.CoreV1().Secrets(namespace).Get(ctx, source.SecretRef.Name, metav1.GetOptions{})
		if err != nil {
			return unlessOptional(err, source.SecretRef.Optional)
		}
		for key, value := range found.Data {
			to[source.Prefix+key] = string(value)
		}
	}
	return nil
}

func unlessOptional(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func fieldOrText(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if variable.ValueFrom == nil {
		return variable.Value, nil
	}
	if variable.ValueFrom.FieldRef != nil {
		switch variable.ValueFrom.FieldRef.FieldPath {
		case "metadata.name":
			return pod.Name, nil
		case "metadata.namespace":
			return pod.Namespace, nil
		case "metadata.uid":
			return string(pod.UID), nil
		case "status.podIP":
			return pod.Status.PodIP, nil
		}
	}
	return "", fmt.Errorf("variable %s comes from where this node can't look", variable.Name)
}

var reference = regexp.MustCompile(`\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)`)

// expand puts variables into a text the way Kubernetes does: $$ is a dollar, and what is not known stays.
func expand(text string, known map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := known[strings.Trim(found, "$()")]; ok {
			return value
		}
		return found
	})
}
