// Command sidecar is to come.
package main

func main() {}
