package node

import (
	"context"
	"net"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const zone = "svc.cluster.local."

// answerNames is the cluster's name server. It answers queries with addresses from the EndpointSlices until conn is
// closed, and handles each query in its own goroutine.
func (n *Node) answerNames(conn net.PacketConn) {
	for {
		buffer := make([]byte, 1500)
		size, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		go func() {
			if reply := n.reply(buffer[:size]); reply != nil {
				_, _ = conn.WriteTo(reply, from) // if the reply is lost, the client retries
			}
		}()
	}
}

func (n *Node) reply(query []byte) []byte {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil || len(message.Questions) != 1 {
		return nil
	}
	question := message.Questions[0]
	addresses, known := n.lookUp(question)
	message.Response, message.RecursionAvailable, message.Authoritative = true, true, true
	message.Additionals, message.Answers = nil, addresses
	if !known {
		message.RCode = dnsmessage.RCodeNameError
	}
	reply, _ := message.Pack() // cannot fail, because the message has just been unpacked
	return reply
}

func (n *Node) lookUp(question dnsmessage.Question) (found []dnsmessage.Resource, known bool) {
	header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1}
	name := strings.ToLower(question.Name.String())
	if question.Type == dnsmessage.TypePTR {
		for _, pointed := range n.pointers(name) {
			target, err := dnsmessage.NewName(pointed)
			if err == nil {
				found = append(found, dnsmessage.Resource{Header: header, Body: &dnsmessage.PTRResource{PTR: target}})
			}
		}
		return found, len(found) > 0
	}
	ips := n.resolve(context.Background(), name)
	if question.Type == dnsmessage.TypeA {
		for _, ip := range ips {
			found = append(found, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: [4]byte(net.ParseIP(ip).To4())}})
		}
	}
	return found, len(ips) > 0
}

// resolve returns the addresses of SERVICE.NAMESPACE.svc.cluster.local, or of one of a headless Service's pods. A
// Service with a cluster IP resolves to the addresses of its pods, because there is no kube-proxy here.
func (n *Node) resolve(ctx context.Context, name string) (ips []string) {
	labels := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, zone), "."), ".")
	if !strings.HasSuffix(name, "."+zone) || len(labels) < 2 || len(labels) > 3 {
		return nil
	}
	host, service, namespace := "", labels[len(labels)-2], labels[len(labels)-1]
	if len(labels) == 3 {
		host = labels[0]
	}
	if host == "" && service == "kubernetes" && namespace == "default" {
		return []string{Gateway} // Forward makes the API server reachable at this address
	}
	for _, endpoint := range n.endpoints(ctx, namespace, service) {
		if host == "" || endpoint.Hostname != nil && *endpoint.Hostname == host {
			ips = append(ips, endpoint.Addresses...)
		}
	}
	if host == "" {
		slices.Sort(ips)
	}
	return ips
}

// endpoints returns the ready endpoints of a Service. If a Service publishes addresses that are not ready, the
// controller marks all of its endpoints as ready.
func (n *Node) endpoints(ctx context.Context, namespace, service string) (found []discoveryv1.Endpoint) {
	slices, err := n.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil
	}
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
				found = append(found, endpoint)
			}
		}
	}
	return found
}

// pointers returns the names for an address. etcd looks them up if a certificate contains a wildcard.
func (n *Node) pointers(name string) (found []string) {
	parts := strings.Split(strings.TrimSuffix(name, ".in-addr.arpa."), ".")
	slices.Reverse(parts)
	ip := strings.Join(parts, ".")
	all, err := n.client.DiscoveryV1().EndpointSlices(corev1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil
	}
	for _, slice := range all.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Hostname != nil && slices.Contains(endpoint.Addresses, ip) {
				found = append(found, strings.Join([]string{*endpoint.Hostname, slice.Labels[discoveryv1.LabelServiceName], slice.Namespace, zone}, "."))
			}
		}
	}
	return found
}

// Dial connects to a Service or a pod as a client in the namespace would.
func (n *Node) Dial(ctx context.Context, namespace, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil {
		ips := n.resolve(ctx, host+"."+namespace+"."+zone)
		if len(ips) == 0 {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		host = ips[0]
	}
	return n.network.dial(ctx, "tcp", net.JoinHostPort(host, port))
}
