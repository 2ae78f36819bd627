// Returns the texts with less contrast to their background than WCAG AA requires.
(() => {
	const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
	const light = (colour) => numbers(colour).slice(0, 3).map((n) => n / 255)
		.map((n) => n <= .04045 ? n / 12.92 : ((n + .055) / 1.055) ** 2.4).reduce((sum, n, i) => sum + n * [.2126, .7152, .0722][i], 0);
	const ground = (at) => {
		for (; at; at = at.parentElement) {
			const rect = at.matches("g") && at.querySelector(":scope > rect");
			if (rect) return getComputedStyle(rect).fill;
			const colour = getComputedStyle(at).backgroundColor;
			if ((numbers(colour)[3] ?? 1) === 1) return colour;
		}
		return "rgb(255, 255, 255)";
	};
	const texts = [...document.querySelectorAll("body *")].filter((at) => at.checkVisibility() && !at.matches("script, style") &&
		[...at.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()));
	return texts.flatMap((at) => {
		const [a, b] = [light(getComputedStyle(at)[at.matches("text") ? "fill" : "color"]), light(ground(at))].sort((a, b) => b - a);
		const ratio = (a + .05) / (b + .05);
		return ratio < 4.5 ? [ratio.toFixed(2) + " " + at.textContent.trim().slice(0, 40)] : [];
	});
})()
