// Swagger UI puts a link into the button of each operation, which screen readers cannot tell apart: here it is plain text.
// Its title belongs to no landmark, and its headings leave out a level: here the title is a banner, and the routes have a heading.
const accessible = () => ({
  wrapComponents: {
    DeepLink: (_, { React }) => ({ text }) => React.createElement("span", null, text),
    InfoContainer: (Info, { React }) => (props) => React.createElement("div", { role: "banner" }, React.createElement(Info, props)),
    operations: (Operations, { React }) => (props) =>
      React.createElement(React.Fragment, null, React.createElement("h2", { className: "unseen" }, "Routes"), React.createElement(Operations, props)),
  },
});

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger", deepLinking: true, validatorUrl: null, plugins: [accessible] });

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = () => document.documentElement.classList.toggle("dark-mode", dark.matches); // Swagger UI's own class
dark.addEventListener("change", colour);
colour();
